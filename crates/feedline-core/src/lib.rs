//! The words of Feedline: what a sample, a batch, a place in the epoch and a random choice are.
//!
//! ```text
//!  order ──► fetch ──► sample task ──► arrange ──► batch ──► deliver
//!  Address   Extent    Sample, Draws   Position    Batch     Tensor
//! ```
//!
//! This crate opens no file and starts no thread. Every other crate speaks in its types.

mod batch;
mod braces;
mod buffer;
mod cache;
mod cancel;
mod dtype;
mod error;
mod host;
mod name;
mod permute;
mod philox;
mod position;
mod sample;
mod seed;
mod spec;
mod step;
mod store;
mod stretch;
mod tensor;
mod url;

pub use batch::Batch;
pub use braces::expand;
pub use buffer::{ALIGNMENT, Buffer, BufferMut, Pool, RowsMut, Slots, most_held};
pub use cache::{Cache, CacheStats, Cost, Fetch, Found, Stored};
pub use cancel::Cancel;
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use host::{Function, Host, Made, Makes};
pub use name::Name;
pub use permute::{Permutation, TwoLevel};
pub use philox::philox4x32;
pub use position::{Address, Length, Position, Span};
pub use sample::{Deferred, Fields, Sample, Value};
pub use seed::{Draws, EpochSeed, SampleSeed, Seed, StepId, mix};
pub use spec::{Dim, Field, Layout, Spec};
pub use step::{
    Before, Blobs, Context, Cursor, Map, Needs, Order, OrderRun, Policy, Source, SourceRecipe,
    StepTime, Workspace,
};
pub use store::{Attempt, Cut, Entry, Extent, Store};
pub use stretch::{BadRow, GoodRow, Rows, Stretch};
pub use tensor::{Shape, Tensor};
pub use url::{Scheme, Url, is_url, place, redacted};
