pub(crate) mod corpora;
mod reports;
mod snapshots;
