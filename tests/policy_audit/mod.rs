mod corpora;
mod reports;
mod snapshots;
