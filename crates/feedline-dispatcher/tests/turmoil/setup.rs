//! What a seed decides before anything happens.

use crate::random::Random;
use feedline_wire::{Millis, Order, Visitation, Windows};

/// What a seed decides.
#[derive(Clone, Debug)]
pub struct Setup {
    pub consumers: u32,
    pub workers: u32,
    pub epochs: u64,
    pub windows: Windows,
    pub order: Order,
    /// With order exact: each client goes by its own state, and the dispatcher only knows the job.
    pub alone: bool,
    pub visitation: Visitation,
    /// The longest that a message may take on its way, while there are failures.
    pub latency: Millis,
    /// Of a million messages, so many break the link that they travel on.
    pub broken: u64,
    pub crashes: u64,
    pub cuts: u64,
    /// Until when things fail.
    pub troubled: Millis,
    pub lookback: u64,
    pub windows_ahead: usize,
    pub spread: u64,
    /// In a thousand steps.
    pub saves: u64,
    pub client_timeout: Millis,
    /// Of twenty faults, so many hit the dispatcher alone.
    pub dispatcher_faults: u64,
    /// After so many bytes the dispatcher takes a snapshot.
    pub snapshot_after: u64,
    /// How long segments of its journal become, and how much space is set aside.
    pub segment_bytes: u64,
    pub reserve_bytes: u64,
    /// How many numbers an argument of the plan has that is too large for it.
    pub argument: usize,
}

impl Setup {
    pub fn new(random: &mut Random) -> Self {
        let steps = random.within(1, 3);
        let count = random.within(4, 20);
        let last = random.within(1, steps);
        let kind = random.within(0, 999);
        Self {
            consumers: random.within(1, 3) as u32,
            workers: random.within(1, 3) as u32,
            epochs: random.within(1, 3),
            windows: Windows { count, steps, last },
            order: if kind < 200 { Order::Exact } else { Order::Any },
            alone: kind < 100,
            visitation: match kind >= 850 {
                true => Visitation::AtMostOnce,
                false => Visitation::ExactlyOnce,
            },
            latency: *random.pick(&[5, 40, 200]),
            broken: *random.pick(&[0, 0, 200, 2_000]),
            crashes: random.within(0, 14),
            cuts: random.within(0, 4),
            troubled: random.within(1_000, 10_000),
            lookback: *random.pick(&[0, 4, 512]),
            windows_ahead: random.within(1, 4) as usize,
            spread: *random.pick(&[2, 8, 1024]),
            saves: *random.pick(&[50, 200, 500]),
            client_timeout: *random.pick(&[1_500, 8_000]),
            dispatcher_faults: 4,
            snapshot_after: *random.pick(&[400, 2_000, 1 << 20]),
            segment_bytes: *random.pick(&[500, 1 << 20]),
            reserve_bytes: *random.pick(&[0, 4_096, 1 << 20]),
            argument: *random.pick(&[0, 0, 300]),
        }
    }
}
