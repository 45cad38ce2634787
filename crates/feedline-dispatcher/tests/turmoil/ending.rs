//! The end: what survived has to be every step, exactly once.

use crate::history::{History, MOST_STEPS};
use crate::trace;
use crate::world::{Task, World};

impl World {
    pub fn is_over(&self) -> bool {
        self.slots.iter().all(|slot| match slot.process {
            Some(process) => self.processes[process].finished,
            None => slot.lost,
        })
    }

    /// Somebody may have begun again from the common state when others had finished already: these
    /// begin again too.
    pub fn call_back(&mut self) -> bool {
        let incarnation = |process: &usize| self.processes[*process].incarnation;
        let processes: Vec<usize> = self.slots.iter().filter_map(|slot| slot.process).collect();
        let lost = self.slots.iter().filter_map(|slot| slot.lost_process);
        let newest = processes.iter().copied().chain(lost).map(|one| incarnation(&one)).max();
        let old: Vec<usize> =
            processes.iter().copied().filter(|one| Some(incarnation(one)) != newest).collect();
        for process in &old {
            trace::note(&format!("process {process} finished too early"));
            self.begin_again(*process);
        }
        !old.is_empty()
    }

    /// A process that has finished begins again from the common state.
    pub fn begin_again(&mut self, process: usize) {
        let slot = self.processes[process].consumer.0 as usize;
        self.bury(process);
        self.slots[slot].saves.clear();
        self.soon(10, 1_000, Task::Start { slot, plan: self.plans });
    }

    /// Checks the history that survived.
    pub fn check(&mut self) -> Result<(), String> {
        if !self.exactly_once() {
            return Ok(());
        }
        let mut processes = self.slots.iter().filter_map(|slot| slot.process);
        let Some(first) = processes.next() else { return Ok(()) };
        let incarnation = self.processes[first].incarnation;
        let mut history = self.processes[first].base;
        for slot in self.slots.iter().filter_map(|slot| slot.process) {
            let process = &self.processes[slot];
            if process.incarnation != incarnation {
                return Err("clients finished in different incarnations".into());
            }
            history.join(&process.history)?;
        }
        // A lost client that held nothing was never released: all it used is known to be used.
        if !self.inherited.iter().any(|(known, _)| *known == incarnation) {
            for slot in self.slots.iter().filter(|slot| slot.process.is_none()) {
                let lost = slot.lost_process.map(|lost| &self.processes[lost]);
                if let Some(lost) = lost.filter(|lost| lost.incarnation == incarnation) {
                    history.join(&lost.history)?;
                }
            }
        }
        for (_, used) in self.inherited.iter().filter(|(known, _)| *known == incarnation) {
            history.join(used)?;
        }
        let steps = self.setup.windows.total();
        debug_assert!(steps <= MOST_STEPS, "steps fit the history");
        match History::full(self.setup.epochs, steps).missing_in(&history) {
            Some(missing) => Err(missing),
            None => Ok(()),
        }
    }

    /// What everybody does when nothing goes on.
    pub fn standstill(&self) -> String {
        let slots = self.slots.iter().enumerate().map(|(at, slot)| match slot.process {
            None if slot.lost => format!("client {at} is lost"),
            None => format!("client {at} is down"),
            Some(process) => {
                let process = &self.processes[process];
                format!("client {at}: attached {}, finished {}", process.attached, process.finished)
            }
        });
        slots.collect::<Vec<_>>().join(", ")
    }
}
