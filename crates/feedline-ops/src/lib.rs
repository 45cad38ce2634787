//! Every step of Feedline, one file each, in the order in which data meets them:
//!
//! ```text
//!  source/ ──► order/ ──► decode/ ──► image/  ──► table/ ──► batch/
//!  where        which     bytes to    volume/     fields     samples
//!  samples lie  next      pixels      pixels,                meet
//!                                     voxels
//! ```
//!
//! Functions that users wrote (`function/`) may stand anywhere between `source/` and `batch/`.
//!
//! [`Pipeline`] binds a plan's steps to each other and to the data, and [`plain`] runs it on one
//! thread without buffers: that run defines what a pipeline means. `keep/` holds the cache, which may stand
//! between any of them and changes no result. Below the steps lie `codec/`
//! (formats: encoded bytes to pixels, headers of arrays and scans) and `kernel/` (arithmetic on pixels
//! and voxels), which know no step.

pub mod batch;
pub mod codec;
pub mod decode;
pub mod function;
pub mod image;
pub mod keep;
pub mod kernel;
pub mod order;
pub mod pipeline;
pub mod plain;
pub mod sink;
pub mod source;
pub mod table;
pub mod volume;

mod registry;
mod task;

pub use pipeline::{BoundMap, CachePoint, Pipeline};
pub use registry::{Builtin, Step};
pub use task::{Progress, Row, Task};
