//! Runs a pipeline on this machine.
//!
//! ```text
//!            deal            fetch               sample task             arrange, deliver
//!  places ─────────► group ─────────► bytes ──────────────────► rows ─────────────────► Batch
//!            (which)        (store)            (all steps, into          (in order)
//!                                               the batch's slot)
//! ```
//!
//! [`Run::start`] begins, [`Run::next`] delivers, dropping the run ends it. A group is the places
//! of one batch; its buffers are there before its samples, and each sample's last step writes
//! straight into its row. Groups are dealt ahead of the consumer as far as memory allows, and
//! delivered in order, whatever the number of threads.

mod arrange;
mod assembly;
mod bucket;
mod budget;
mod counters;
mod deal;
mod explain;
mod fetch;
mod finish;
mod group;
pub mod host;
mod lane;
mod loose;
mod memory;
mod predict;
mod ready;
mod record;
mod run;
pub mod save;
mod state;
mod team;
mod tracker;
mod tune;
mod window;
mod worker;

pub use assembly::{Assembly, Wanted};
pub use budget::{Budget, Delivery, MOST_OWED, Options};
pub use counters::{Stats, StepStats, Tuned};
pub use deal::{Steps, rounds_left, steps_left, stretches_left};
pub use explain::{Explanation, explain};
pub use finish::{Cut, Finish};
pub use loose::Loose;
pub use memory::machine_memory;
pub use record::Recording;
pub use run::{Next, Run, Watch};
pub use state::{State, merge_states};
pub use team::Team;
pub use window::{Progress, Window, WindowRun};
