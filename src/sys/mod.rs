//! Thin safe wrappers over system calls: the only place with `unsafe`.
