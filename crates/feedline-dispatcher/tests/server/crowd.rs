//! Many clients at once.

use crate::support::*;
use feedline_wire::control::Control;
use feedline_wire::{ConsumerIndex, Refusal, Reply, Request, Seat};
use std::collections::BTreeSet;
use std::sync::Mutex;

#[test]
fn sixty_four_clients_share_two_epochs_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let control = remote(&dispatcher);
    register(&control);
    let all = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for consumer in 0..64 {
            let (dispatcher, all) = (&dispatcher, &all);
            scope.spawn(move || {
                let control = remote(dispatcher);
                let mut trainer = Trainer::join(&control, "job", 3000, 64, consumer);
                trainer.epoch(&control, 3);
                trainer.epoch(&control, 5);
                let mut all = all.lock().unwrap();
                for window in trainer.used {
                    assert!(all.insert(window), "{window:?} came to two clients");
                }
            });
        }
    });
    assert_eq!(all.into_inner().unwrap().len(), 6000);
}

#[test]
fn one_connection_serves_many_threads() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let control = remote(&dispatcher);
    register(&control);
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let control = &control;
            scope.spawn(move || {
                let mut trainer = Trainer::join(control, &format!("job {thread}"), 60, 1, 0);
                assert_eq!(trainer.epoch(control, 7), 60);
            });
        }
    });
    assert_eq!(dispatcher.status().jobs.len(), 16);
}

#[test]
fn nobody_speaks_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = start(folder.path());
    let control = remote(&dispatcher);
    register(&control);
    let one = Trainer::join(&control, "job", 50, 2, 0);
    let mut two = Trainer::join(&control, "job", 50, 2, 1);
    two.get(&control, 3);
    // Another's seat, with one's own cursor and with the other's.
    for cursor in [one.cursor.clone(), two.cursor.clone()] {
        let seat = Seat { ticket: one.seat.ticket, ..two.seat };
        let reply = control.ask(&Request::Commit { seat, cursor }, PATIENCE).unwrap();
        assert!(matches!(refused(reply), Refusal::Superseded { .. }));
    }
    let seat = Seat { consumer: ConsumerIndex(9), ..one.seat };
    let reply =
        control.ask(&Request::Commit { seat, cursor: one.cursor.clone() }, PATIENCE).unwrap();
    assert!(matches!(refused(reply), Refusal::Mismatch(_)));
    // A later process of the same client has its place.
    let mut late = two.clone();
    let mut again = Trainer::join(&control, "job", 50, 2, 1);
    assert!(matches!(refused(late.get(&control, 1)), Refusal::Superseded { .. }));
    assert!(matches!(again.get(&control, 1), Reply::Granted { .. }));
    let (job, incarnation, consumer) = (one.job(), one.seat.incarnation, ConsumerIndex(1));
    let release = Request::Release { job, incarnation, consumer };
    assert_eq!(control.ask(&release, PATIENCE), Ok(Reply::Released));
    assert!(matches!(refused(again.commit(&control)), Refusal::Superseded { .. }));
}
