//! Events → append-only, hash-chained lines on disk; the reader, the check and the replay of them.
