//! A real dispatcher on real sockets, with a journal on a real disk.

mod crowd;
mod datasets;
mod full;
mod hostile;
mod killed;
mod restart;
mod support;
mod workers;
