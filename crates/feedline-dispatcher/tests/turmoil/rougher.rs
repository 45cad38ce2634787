//! Worlds in which one thing goes wrong far more often than anything else.

use crate::cluster::run_adjusted;
use crate::setup::Setup;
use crate::{SEEDS, number};
use feedline_wire::{Order, Visitation};

/// Clients share windows, and everything counts.
fn shared(setup: &mut Setup) {
    (setup.order, setup.alone, setup.visitation) = (Order::Any, false, Visitation::ExactlyOnce);
    setup.troubled = 15_000;
}

/// The dispatcher crashes all the time, and little else does.
fn crashing_dispatcher(setup: &mut Setup) {
    shared(setup);
    (setup.crashes, setup.dispatcher_faults, setup.epochs) = (30, 18, 3);
}

/// Clients save often, go back often, and remember for long what they used.
fn restless_clients(setup: &mut Setup) {
    shared(setup);
    (setup.consumers, setup.crashes, setup.dispatcher_faults) = (setup.consumers.max(2), 30, 0);
    (setup.saves, setup.lookback) = (500, 512);
}

/// Links break and are cut all the time.
fn breaking_links(setup: &mut Setup) {
    (setup.broken, setup.cuts, setup.troubled) = (20_000, 20, 15_000);
}

#[test]
fn rougher_worlds_keep_every_step_exactly_once() {
    let (first, seeds) = (number("FEEDLINE_SEED", 1), number("FEEDLINE_SEEDS", SEEDS) / 75);
    for (name, adjust) in [
        ("crashing dispatcher", crashing_dispatcher as fn(&mut Setup)),
        ("restless clients", restless_clients),
        ("breaking links", breaking_links),
    ] {
        for seed in first..first + seeds {
            if let Err(what) = run_adjusted(seed, adjust) {
                panic!("{name}, seed {seed}: {what}");
            }
        }
    }
}
