//! Mistakes that tests plant, to see that the simulator finds them. In a normal build none can be
//! planted, and asking for one compiles to `false`.

/// A mistake: what a rule of the protocol prevents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The client takes data at any offset.
    NoOffsetCheck,
    /// A worker goes on where it stopped, whatever offset it is asked for.
    WorkerKeepsOffset,
    /// The client takes a late reply for the one it waits for.
    NoRequestId,
    /// Windows of a silent client are dealt to others.
    ReassignByTimeout,
    /// Requests of a process that was replaced are obeyed.
    NoClientFence,
    /// The cursor counts what was received, not what was used.
    PrefetchCursor,
    /// A client goes on where the dispatcher saw it last, not where its checkpoint stands.
    ServiceSideCursor,
    /// Replies do not wait for the journal.
    ReplyBeforeJournal,
    /// A torn record is left in the journal, and others are appended behind it.
    AppendAfterTornTail,
    /// Grants that the client never heard of are not offered again.
    NoHeldSet,
    /// A cursor may claim windows of others.
    NoOwnershipCheck,
    /// A single client may go back into an epoch that has ended.
    NoSeal,
    /// A window counts as used when its last batch is handed over.
    DoneAtYield,
    /// "End" does not wait for the journal; other replies do.
    EndBeforeSync,
    /// A second `Attach` with the same ticket may bring another cursor.
    SameTicketOtherCursor,
    /// `Restore` joins an incarnation in which an earlier process of this client already trained.
    RestoreJoinsAttached,
    /// `Restore` leaves the clients of the incarnation before alone.
    RestoreFencesNobody,
    /// Merging believes the cursor that has heard most.
    MergeTakesHighestFloor,
    /// Merging overlooks that a client went back between two cursors.
    MergeIgnoresRewinds,
    /// A cursor is believed about windows that were granted after it was saved.
    NoStamps,
}

#[cfg(feature = "mutants")]
mod planting {
    use super::Mutant;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Plants a mistake in this thread, or removes it.
    pub fn plant(mutant: Option<Mutant>) {
        PLANTED.with(|planted| planted.set(mutant));
    }

    /// Whether this mistake is planted in this thread.
    #[must_use]
    pub fn planted(mutant: Mutant) -> bool {
        PLANTED.with(|planted| planted.get() == Some(mutant))
    }
}

#[cfg(feature = "mutants")]
pub use planting::{plant, planted};

/// Whether this mistake is planted: never, in a normal build.
#[cfg(not(feature = "mutants"))]
#[must_use]
#[inline(always)]
pub const fn planted(_mutant: Mutant) -> bool {
    false
}
