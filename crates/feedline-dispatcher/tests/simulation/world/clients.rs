//! Clients and their trainers: they start, train, save, and fail.

use super::*;

impl World {
    pub(super) fn config(&mut self, slot: usize) -> Config {
        let description = Description {
            dataset: "dataset".into(),
            visitation: self.setup.visitation,
            order: self.setup.order,
            windows: self.setup.windows,
        };
        let consumers = self.slots.len() as u32;
        let nonce = Nonce(self.random.next());
        let (name, slot) = (JobName("job".into()), ConsumerIndex(slot as u32));
        Config {
            windows_ahead: self.setup.windows_ahead,
            steps_ahead: self.random.within(1, 8),
            steps_per_fetch: self.random.within(1, 4),
            lookback: self.setup.lookback,
            request_timeout: 400,
            patience: 20_000,
            ..Config::new(name, description, consumers, slot, nonce)
        }
    }

    /// Starts a client's process, from one of its saves, or from what all begin from.
    pub(super) fn start(&mut self, slot: usize) -> Result<(), String> {
        let base = self.plan.as_ref().map_or(History::default(), |plan| plan.base);
        let saves = self.slots[slot].saves.len() as u64;
        let (begin, history, round, began_from) = match (saves, &self.plan) {
            (0, None) => (Begin::Fresh, self.slots[slot].inherits, 0, None),
            (0, Some(plan)) => {
                let (start, hash) = (plan.start.clone(), plan.hash.clone());
                (Begin::Restore { start, hash }, History::default(), 0, None)
            }
            _ => {
                let save = self.random.within(0, saves - 1).max(self.random.within(0, saves - 1));
                let save = &self.slots[slot].saves[save as usize];
                let begin = Begin::Resume(save.checkpoint.clone());
                (begin, save.history, save.round, Some(save.round))
            }
        };
        self.launch(slot, begin, history, base, round, began_from)
    }

    pub(super) fn launch(
        &mut self,
        slot: usize,
        begin: Begin,
        history: History,
        base: History,
        round: u64,
        began_from: Option<u64>,
    ) -> Result<(), String> {
        if let Begin::Resume(checkpoint) = &begin {
            // It goes back: what it saved later is of no use to anyone.
            let (incarnation, consumer) =
                (checkpoint.cursor.incarnation, ConsumerIndex(slot as u32));
            for ((known, later), saves) in &mut self.common {
                if *known == incarnation && *later > round {
                    saves.remove(&consumer);
                }
            }
            self.outcome.rewinds += 1;
        }
        let process = self.processes.len();
        trace!(self, "process {process} starts as client {slot}: {begin:?}");
        let config = self.config(slot);
        let client = Client::new(config, begin, self.now);
        self.processes.push(Process {
            consumer: ConsumerIndex(slot as u32),
            alive: true,
            client,
            layout: None,
            history,
            base,
            inherits_in: None,
            zombie: false,
            batch: None,
            round,
            began_from,
            finished: false,
            wakes_at: None,
        });
        self.slots[slot].process = Some(process);
        let workers: Vec<WorkerId> = (0..self.setup.workers).map(WorkerId).collect();
        self.processes[process].client.workers(self.now, &workers);
        self.processes[process].client.next(self.now);
        self.act(process)
    }

    pub(super) fn counts(&self, process: usize) -> bool {
        self.slots.iter().any(|slot| slot.process == Some(process))
    }

    /// Carries out what a client wants done.
    pub(super) fn act(&mut self, process: usize) -> Result<(), String> {
        while let Some(action) = self.processes[process].client.action() {
            let node = slot_node(self.processes[process].consumer);
            match action {
                Action::Send { sequence, request } => {
                    trace!(self, "process {process} says {sequence}: {request:?}");
                    let request = Rc::new(request);
                    for arrival in self.arrivals(node, DISPATCHER).into_iter().flatten() {
                        let request = Rc::clone(&request);
                        let what = Happening::ToDispatcher { from: process, sequence, request };
                        self.at(arrival, what);
                    }
                }
                Action::Fetch { worker, fetch } => {
                    let layout = self.layout(process);
                    for arrival in self.arrivals(node, worker_node(worker.0)).into_iter().flatten()
                    {
                        let layout = Rc::clone(&layout);
                        let worker = worker.0;
                        self.at(
                            arrival,
                            Happening::ToWorker { worker, from: process, fetch, layout },
                        );
                    }
                }
                Action::Deliver { batch, epoch, window, offset } => {
                    self.settle(process);
                    trace!(
                        self,
                        "process {process} trains on step {batch} of epoch {epoch} \
                         (window {window}, offset {offset})"
                    );
                    self.mix([self.now, 8, batch]);
                    if !self.exactly_once() {
                        let incarnation = self.processes[process].client.incarnation();
                        let ever = self.ever.entry(incarnation).or_default();
                        if !ever.insert(epoch.0, batch) {
                            return Err(format!("step {batch} of epoch {epoch} came twice"));
                        }
                    }
                    self.processes[process].batch = Some((epoch.0, batch));
                    let long = self.random.chance(20);
                    let (from, to) = if long && !self.healed { (500, 4_000) } else { (5, 100) };
                    self.soon(from, to, Happening::Trainer { process });
                }
                Action::EndOfEpoch(epoch) => {
                    trace!(self, "process {process} hears the end of epoch {epoch}");
                    self.settle(process);
                    if epoch.0 + 1 == self.setup.epochs {
                        self.processes[process].finished = true;
                        continue;
                    }
                    if self.random.chance(300) {
                        self.save(process);
                    }
                    self.soon(1, 50, Happening::Trainer { process });
                }
                Action::Fail(error) => self.fail(process, &error)?,
            }
        }
        let wake = self.processes[process].client.wake().map(|wake| wake.max(self.now + 1));
        let known = &mut self.processes[process];
        if known.alive
            && !known.finished
            && let Some(wake) = wake
            && known.wakes_at.is_none_or(|at| wake < at || at <= self.now)
        {
            known.wakes_at = Some(wake);
            self.at(wake, Happening::Wake { process });
        }
        Ok(())
    }

    /// Who takes the place of a lost client inherits what that had used, unless all began again before
    /// it had its seat.
    pub(super) fn settle(&mut self, process: usize) {
        let known = &mut self.processes[process];
        let begun = known.client.incarnation();
        if known.inherits_in.take().is_some_and(|incarnation| incarnation != begun) {
            known.history = History::default();
        }
    }

    pub(super) fn layout(&mut self, process: usize) -> Rc<Layout> {
        let whole = self.setup.windows;
        let known = &mut self.processes[process];
        Rc::clone(
            known.layout.get_or_insert_with(|| Rc::new(Layout::new(known.client.start(), whole))),
        )
    }

    /// The trainer is through with its batch, or begins the next epoch.
    pub(super) fn train(&mut self, process: usize) -> Result<(), String> {
        if !self.processes[process].alive || self.processes[process].finished {
            return Ok(());
        }
        if let Some((epoch, step)) = self.processes[process].batch.take() {
            let known = &mut self.processes[process];
            let twice = !known.history.insert(epoch, step) || known.base.contains(epoch, step);
            if twice && self.counts(process) && self.exactly_once() {
                return Err(format!("process {process} got step {step} of epoch {epoch} twice"));
            }
            if self.random.chance(self.setup.saves) {
                self.save(process);
            }
        }
        self.processes[process].client.next(self.now);
        self.act(process)
    }

    /// A trainer saves its state.
    pub(super) fn save(&mut self, process: usize) {
        if !self.counts(process) {
            return;
        }
        let Some(checkpoint) = self.processes[process].client.checkpoint() else { return };
        let known = &mut self.processes[process];
        known.round += 1;
        let (round, consumer) = (known.round, known.consumer);
        let save = Save {
            checkpoint,
            round,
            history: known.history,
            base: known.base,
            consumers: self.slots.len() as u32,
        };
        trace!(self, "process {process} saves round {round}: {:?}", save.checkpoint);
        let incarnation = save.checkpoint.cursor.incarnation;
        let saves = self.common.entry((incarnation, round)).or_default();
        saves.insert(consumer, save.clone());
        let saves = &mut self.slots[consumer.0 as usize].saves;
        saves.push(save);
        if saves.len() > 3 {
            saves.remove(0);
        }
    }

    pub(super) fn fail(&mut self, process: usize, error: &Error) -> Result<(), String> {
        trace!(self, "process {process} fails: {error}");
        self.mix([self.now, 9, process as u64]);
        if !self.counts(process) {
            self.processes[process].alive = false;
            return Ok(());
        }
        let slot = self.processes[process].consumer.0 as usize;
        match error {
            Error::NoAnswer { .. } => self.soon(10, 500, Happening::Trainer { process }),
            Error::Refused(Refusal::Silent { consumer, .. }) => {
                let silent = consumer.0 as usize;
                // It has finished, but in a life of the job that is over.
                let finished = self.slots.get(silent).and_then(|slot| slot.process);
                let finished = finished.filter(|one| self.processes[*one].finished);
                if let Some(finished) = finished {
                    self.kill(finished);
                    self.slots[silent].saves.clear();
                    self.soon(10, 1_000, Happening::Start { slot: silent, plan: self.plans });
                }
                if self.slots.get(silent).is_some_and(|slot| slot.lost) {
                    let incarnation = self.processes[process].client.incarnation();
                    self.soon(10, 500, Happening::Release { slot: silent, incarnation });
                }
                self.soon(500, 1_500, Happening::Trainer { process });
            }
            Error::Refused(Refusal::NotYours { .. } | Refusal::RewoundTooFar { .. }) => {
                let began_from = self.processes[process].began_from;
                self.slots[slot].saves.retain(|save| Some(save.round) != began_from);
                self.kill(process);
                if self.slots[slot].saves.is_empty() || self.random.chance(300) {
                    self.restore()?;
                } else {
                    self.soon(10, 1_000, Happening::Start { slot, plan: self.plans });
                }
            }
            // One that seemed to have crashed was slower, and has the seat.
            Error::Refused(Refusal::Superseded { .. }) => {
                self.kill(process);
                self.soon(10, 1_000, Happening::Start { slot, plan: self.plans });
            }
            // Somebody began again from the common state: so does this one.
            Error::Refused(Refusal::StaleIncarnation { .. }) if self.plan.is_some() => {
                self.kill(process);
                self.slots[slot].saves.clear();
                self.soon(10, 1_000, Happening::Start { slot, plan: self.plans });
            }
            error => return Err(format!("process {process} fails: {error}")),
        }
        Ok(())
    }

    pub(super) fn kill(&mut self, process: usize) {
        self.processes[process].alive = false;
        self.slots.iter_mut().filter(|slot| slot.process == Some(process)).for_each(|slot| {
            slot.process = None;
        });
    }
}
