//! Bytes by name and range. Today: local files.

mod local;

pub use local::LocalStore;
