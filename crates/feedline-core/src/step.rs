//! What a step is: sources, steps that order, steps that turn one sample into another.

use crate::{
    Cancel, Draws, EpochSeed, Error, Extent, Host, Length, Name, Permutation, Pool, Result, Sample,
    SampleSeed, Spec, StepId, Store, Tensor,
};
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Large arguments of a plan (arrays, lists of files, weights), named by the hash of their content.
pub type Blobs = HashMap<String, Tensor>;

/// A source as the plan describes it.
pub trait SourceRecipe: Send + Sync {
    /// What its samples look like, known before anything is opened.
    ///
    /// # Errors
    ///
    /// If the recipe cannot be right.
    fn spec(&self) -> Result<Spec>;

    /// Resolves the source to a fixed list of samples.
    ///
    /// # Errors
    ///
    /// If the data is missing or is not what the recipe says.
    fn open(&self, store: &dyn Store, blobs: &Blobs) -> Result<Arc<dyn Source>>;
}

/// An opened source: a fixed number of samples, each with an address.
pub trait Source: Send + Sync {
    /// Number of samples.
    fn length(&self) -> u64;

    /// Where the bytes of sample `index` lie; `None` if it needs none.
    fn locate(&self, index: u64) -> Option<Extent<'_>>;

    /// Makes the sample out of its bytes.
    ///
    /// # Errors
    ///
    /// If the bytes are not a sample.
    fn parse(&self, index: u64, bytes: Option<crate::Buffer>) -> Result<Sample>;

    /// What to call sample `index` in a message: its file, or its row.
    fn origin(&self, index: u64) -> String;

    /// A hash over what index i means: names, sizes, times, labels, contents of arrays.
    fn manifest(&self) -> String;

    /// Bytes of sample `index` as far as they are known before anything is read: what its cost goes
    /// by.
    fn weight(&self, index: u64) -> u64 {
        self.locate(index).map_or(0, |extent| extent.length)
    }

    /// Integers of a field that are known without reading samples: the labels, for one.
    fn column(&self, _field: &str) -> Option<Vec<i64>> {
        None
    }

    /// A name of sample `index` that stays when samples are added before it; `None` if its index
    /// is all there is.
    fn key(&self, _index: u64) -> Option<Vec<u8>> {
        None
    }

    /// Which of its files sample `index` comes from, as any number that only this file has; `None`
    /// if it comes from none.
    fn file(&self, index: u64) -> Option<u64> {
        self.locate(index).map(|_| index)
    }

    /// Something that opening has found to be bad already, as an error of the whole source. Where
    /// bad samples are left out it is one of them.
    fn known_bad(&self) -> Option<Error> {
        None
    }

    /// Bytes of all samples as they lie in the store, if known.
    fn stored_bytes(&self) -> Option<u64> {
        None
    }

    /// Number of neighbouring samples that are cheap to read together.
    fn block(&self) -> u64 {
        1
    }

    /// Names of the classes that integer labels stand for, in order.
    fn classes(&self) -> Option<&[String]> {
        None
    }
}

/// A step that chooses or orders samples without looking into them.
pub trait Order: Send + Sync {
    /// Checks the recipe alone.
    ///
    /// # Errors
    ///
    /// If it can never be right.
    fn check(&self) -> Result<()>;

    /// Binds the recipe to an opened source and to the order before it.
    ///
    /// # Errors
    ///
    /// If they do not fit.
    fn bind(
        &self,
        source: &dyn Source,
        blobs: &Blobs,
        before: &Before<'_>,
        step: StepId,
    ) -> Result<Box<dyn OrderRun>>;

    /// Whether the step gives the same in every epoch and every run, whatever the seed.
    fn is_fixed(&self) -> bool {
        false
    }

    /// The step that does to samples what this one does to batches of `size` samples, if it makes
    /// sense behind a batch.
    fn of_batches(&self, _size: u64) -> Option<Box<dyn Order>> {
        None
    }
}

/// The order before a step.
pub struct Before<'a> {
    /// Its number of places.
    pub length: Length,
    /// Whether it is the same in every epoch and every run.
    pub fixed: bool,
    /// Its steps.
    pub order: &'a [Box<dyn OrderRun>],
}

impl Before<'_> {
    /// The number of places, if they hold the same samples in every epoch.
    #[must_use]
    pub fn fixed_length(&self) -> Option<u64> {
        self.length.finite().filter(|_| self.fixed)
    }

    /// The index in the source that comes at `place` of a fixed order.
    #[must_use]
    pub fn index(&self, place: u64) -> u64 {
        let mut cursor = Cursor::new(EpochSeed { seed: crate::Seed(0), epoch: 0 });
        self.order.iter().rev().fold(place, |place, step| step.at(place, 0, &mut cursor).0)
    }
}

/// A bound [`Order`]: arithmetic on places.
pub trait OrderRun: Send + Sync {
    /// Number of places it gives.
    fn length(&self) -> Length;

    /// Which place of the order before it comes at `place`, and on which visit.
    fn at(&self, place: u64, visit: u64, cursor: &mut Cursor) -> (u64, u64);
}

/// What steps that order keep between neighbouring places: only ever things that could be computed
/// again.
#[derive(Debug)]
pub struct Cursor {
    /// Seed and epoch of the order.
    pub seed: EpochSeed,
    kept: Vec<Kept>,
}

#[derive(Debug)]
struct Kept {
    owner: (StepId, u64),
    key: u64,
    permutation: Permutation,
}

impl Cursor {
    /// A cursor for one epoch.
    #[must_use]
    pub fn new(seed: EpochSeed) -> Self {
        Self { seed, kept: Vec::new() }
    }

    /// The permutation that `step` last made for its `part`, made anew if the key is another.
    pub fn permutation(
        &mut self,
        step: StepId,
        part: u64,
        key: u64,
        make: impl FnOnce() -> Permutation,
    ) -> &Permutation {
        let owner = (step, part);
        let at = match self.kept.iter().position(|kept| kept.owner == owner) {
            Some(at) => {
                if self.kept[at].key != key {
                    self.kept[at].permutation = make();
                    self.kept[at].key = key;
                }
                at
            }
            None => {
                self.kept.push(Kept { owner, key, permutation: make() });
                self.kept.len() - 1
            }
        };
        &self.kept[at].permutation
    }
}

/// A step that turns one sample into another and remembers nothing.
pub trait Map: Send + Sync {
    /// Checks the recipe against what comes in, settles what it left open (which field it works
    /// on), and says what comes out.
    ///
    /// # Errors
    ///
    /// Every mistake that can be seen before the first sample, in the words of the plan's author.
    fn prepare(&mut self, input: &Spec) -> Result<Spec>;

    /// Told once, when the data is opened: a name of what comes in that is the same for the same
    /// sample of the same data after the same steps, or `None` if random steps come before. A step
    /// may keep what it found out about a sample under that name.
    fn bind(&mut self, _identity: Option<&str>) {}

    /// Told once, when the data is opened: the plan's large arguments, and who runs functions here,
    /// if anybody does.
    ///
    /// # Errors
    ///
    /// If an argument that the step needs was not handed over.
    fn attach(&mut self, _blobs: &Blobs, _host: Option<&Arc<dyn Host>>) -> Result<()> {
        Ok(())
    }

    /// The function that the step has a host run, by its name; `None` for a step that needs no host.
    fn function(&self) -> Option<&str> {
        None
    }

    /// Whether the step leaves samples out, with [`Error::Filtered`].
    fn is_filter(&self) -> bool {
        false
    }

    /// Does the work on one sample. Random choices come from [`Context::draws`].
    ///
    /// # Errors
    ///
    /// If this sample cannot be used, or is left out.
    fn map(&self, sample: Sample, context: &mut Context<'_>) -> Result<Sample>;

    /// Whether several samples at once, with [`Map::map_many`], cost less than one after another.
    fn gathers(&self) -> bool {
        false
    }

    /// Does the work on several samples, each under its own seed. What becomes of each is as if it had
    /// come alone.
    fn map_many(
        &self,
        samples: Vec<(SampleSeed, Sample)>,
        context: &mut Context<'_>,
    ) -> Vec<Result<Sample>> {
        let map = |(seed, sample)| {
            context.seed = seed;
            self.map(sample, context)
        };
        samples.into_iter().map(map).collect()
    }

    /// Which fields have to be at hand before `map` is called, out of those that are still to be
    /// read from the store. By default everything, or nothing if the step only extends
    /// descriptions.
    fn needs(&self, _sample: &Sample, _context: &Context<'_>) -> Needs {
        if self.is_fused() { Needs::Nothing } else { Needs::Everything }
    }

    /// Which of a few ways the step takes for a sample, as far as its draws alone tell; 0 is the
    /// usual one. Costs are learnt for each way by itself, before any work is done.
    fn way(&self, _draws: Draws) -> u8 {
        0
    }

    /// Whether the step makes random choices.
    fn is_random(&self) -> bool {
        false
    }

    /// Whether the step extends a deferred image instead of computing it, so that it runs in one
    /// pass with its neighbours.
    fn is_fused(&self) -> bool {
        false
    }

    /// Whether what it gives depends on the size that a step after it asks for, so that it cannot be
    /// kept as it is.
    fn is_open(&self) -> bool {
        false
    }
}

/// What a step needs to be read before it can work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Descriptions are enough.
    Nothing,
    /// One field.
    Field(Name),
    /// All fields.
    Everything,
}

/// What happens to a record that cannot be used.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Policy {
    /// The run ends with its error.
    #[default]
    Raise,
    /// It is left out.
    Skip {
        /// So many may be left out in an epoch; `None` for any number.
        count: Option<u64>,
        /// This share of the epoch may be left out; `None` for any share.
        share: Option<f64>,
        /// Each is written down here, one JSON object a line.
        file: Option<std::path::PathBuf>,
    },
}

/// Time and volume of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// Nanoseconds spent in the step.
    pub nanos: u64,
    /// Samples that were timed.
    pub samples: u64,
}

/// What one thread reuses from sample to sample.
pub struct Workspace {
    /// Where buffers come from.
    pub pool: Pool,
    /// Whether deferred values are computed one step after another, by the simplest code there is:
    /// the meaning that the fast way is held to.
    pub reference: bool,
    /// Time per step, counted while `timing` is on.
    pub times: Vec<StepTime>,
    /// Whether this sample is timed.
    pub timing: bool,
    /// Says when the run is to end.
    pub cancel: Cancel,
    /// Whether samples wait for each other before steps that take several at once.
    pub gathers: bool,
    /// Nanoseconds that went into what is done once, such as starting a process: no part of what
    /// samples cost.
    pub once_nanos: u64,
    kept: Vec<Box<dyn Any + Send>>,
}

impl Workspace {
    /// A workspace for a pipeline of `steps` steps.
    #[must_use]
    pub fn new(pool: Pool, steps: usize, reference: bool) -> Self {
        let times = vec![StepTime::default(); steps];
        let (cancel, kept) = (Cancel::default(), Vec::new());
        Self { pool, reference, times, timing: false, cancel, gathers: false, once_nanos: 0, kept }
    }

    /// Takes the value of type `T` out, to be given back with [`Workspace::keep`].
    pub fn take<T: Default + Send + 'static>(&mut self) -> Box<T> {
        match self.kept.iter().position(|kept| kept.is::<T>()) {
            Some(at) => self.kept.swap_remove(at).downcast().expect("found by its type"),
            None => Box::default(),
        }
    }

    /// Keeps a value for the next sample.
    pub fn keep<T: Send + 'static>(&mut self, value: Box<T>) {
        self.kept.push(value);
    }
}

impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Workspace({} steps)", self.times.len())
    }
}

/// What a step is handed beside the sample.
#[derive(Debug)]
pub struct Context<'a> {
    /// The thread's reusable things.
    pub workspace: &'a mut Workspace,
    /// Which sample this is.
    pub seed: SampleSeed,
    /// Which step this is, for its draws.
    pub step: StepId,
    /// The step's number in the pipeline, for its counters.
    pub slot: usize,
}

impl Context<'_> {
    /// The random numbers of this step for this sample.
    #[must_use]
    pub fn draws(&self) -> Draws {
        Draws::new(&self.seed, self.step)
    }

    /// Charges the time of `work` to step `slot`, if this sample is timed. The time is taken off
    /// the step that is running, so that no nanosecond is counted twice.
    pub fn charge<T>(&mut self, slot: usize, work: impl FnOnce(&mut Self) -> T) -> T {
        if !self.workspace.timing {
            return work(self);
        }
        let start = Instant::now();
        let result = work(self);
        let nanos = start.elapsed().as_nanos() as u64;
        let charged = &mut self.workspace.times[slot];
        charged.nanos = charged.nanos.wrapping_add(nanos);
        let running = &mut self.workspace.times[self.slot];
        running.nanos = running.nanos.wrapping_sub(nanos);
        result
    }
}
