//! A real dispatcher on real sockets, with a journal on a real disk.

#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

mod crowd;
mod datasets;
mod full;
mod hostile;
mod killed;
mod restart;
mod sight;
mod support;
mod trust;
mod workers;
