//! The end: what survived has to be every step, exactly once.

use super::*;

impl World {
    pub(super) fn is_over(&self) -> bool {
        self.slots.iter().all(|slot| match slot.process {
            Some(process) => self.processes[process].finished,
            None => slot.lost,
        })
    }

    /// Somebody may have begun again from the common state when others had finished already: these
    /// begin again too.
    pub(super) fn call_back(&mut self) -> bool {
        let incarnation = |process: &usize| self.processes[*process].client.incarnation();
        let processes: Vec<usize> = self.slots.iter().filter_map(|slot| slot.process).collect();
        let lost = self.slots.iter().filter_map(|slot| slot.lost_process);
        let newest = processes.iter().copied().chain(lost).map(|one| incarnation(&one)).max();
        let old: Vec<usize> =
            processes.iter().copied().filter(|one| Some(incarnation(one)) != newest).collect();
        for process in &old {
            let slot = self.processes[*process].consumer.0 as usize;
            self.kill(*process);
            self.slots[slot].saves.clear();
            self.soon(10, 1_000, Happening::Start { slot, plan: self.plans });
        }
        !old.is_empty()
    }

    /// Checks the history that survived.
    pub(super) fn check(&mut self) -> Result<(), String> {
        if !self.exactly_once() {
            return Ok(());
        }
        let mut processes = self.slots.iter().filter_map(|slot| slot.process);
        let Some(first) = processes.next() else { return Ok(()) };
        let incarnation = self.processes[first].client.incarnation();
        let mut history = self.processes[first].base;
        for slot in self.slots.iter().filter_map(|slot| slot.process) {
            let process = &self.processes[slot];
            if process.client.incarnation() != incarnation {
                return Err("clients finished in different incarnations".into());
            }
            history.join(&process.history)?;
        }
        // A lost client that held nothing was never released: all it used is known to be used.
        if !self.inherited.iter().any(|(known, _)| *known == incarnation) {
            for slot in self.slots.iter().filter(|slot| slot.process.is_none()) {
                let lost = slot.lost_process.map(|lost| &self.processes[lost]);
                if let Some(lost) = lost.filter(|lost| lost.client.incarnation() == incarnation) {
                    history.join(&lost.history)?;
                }
            }
        }
        for (_, used) in self.inherited.iter().filter(|(known, _)| *known == incarnation) {
            history.join(used)?;
        }
        let steps = self.setup.windows.total();
        debug_assert!(steps <= MOST_STEPS, "steps fit the history");
        let full = History::full(self.setup.epochs, steps);
        match full.missing_in(&history) {
            Some(missing) => Err(missing),
            None => Ok(()),
        }
    }
}
