//! What every step is held to: small data to run on, the laws, and scripts of examples.
//!
//! ```text
//!  Fixtures ──► pipeline text ──► assert_laws      engine = plain run, resumed anywhere, any ranks
//!     │                     └───► run_script       a pipeline, a line, what comes out
//!     └ folders of images, lists, arrays           stores that are slow, fail, or count
//!                                                  links that delay, cut, swallow, flip bits
//!                                                  a server of objects that misbehaves
//! ```
//!
//! Only tests depend on this crate.

mod fixtures;
mod functions;
mod laws;
pub mod objects;
pub mod proxy;
mod script;
mod show;
mod stores;
pub mod volumes;

pub use feedline_journal::Coins;
pub use fixtures::{Fixtures, encode_jpeg, encode_with, pixels};
pub use functions::{serve_if_asked, test_host_command, test_hosts};
pub use laws::{Outcome, assert_laws, assert_laws_within, engine_epoch, open, places, plain_epoch};
pub use script::{plans_in, run_script, scripts_in};
pub use show::{show_batch, show_tensor};
pub use stores::{CountingStore, FailingStore, SlowStore, any_store};
