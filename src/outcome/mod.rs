//! What a run did → one structured result.
