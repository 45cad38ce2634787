//! The dispatcher around the core: a journal that is synced now and then, and replies that wait for it.

use super::*;

impl World {
    pub(super) fn answer(
        &mut self,
        from: usize,
        sequence: u64,
        request: &Request,
    ) -> Result<(), String> {
        if !self.server.up {
            return Ok(());
        }
        let (now, server) = (self.now + self.server.clock, &self.server);
        let decision = decide(&server.state, &server.presence, &self.limits, now, request);
        for event in &decision.events {
            trace!(self, "dispatcher: {event:?}");
            self.witness(from, event)?;
            self.server.state.apply(event);
            self.server.journal.push(Some(event.clone()));
        }
        if let Some((job, consumer)) = decision.heard {
            self.server.presence.heard(job, consumer, now);
        }
        let end = matches!(decision.reply, Reply::End { .. });
        let waits = decision.needs_sync()
            && !planted(Mutant::ReplyBeforeJournal)
            && !(end && planted(Mutant::EndBeforeSync));
        let needed = if waits { self.server.journal.len() } else { 0 };
        self.server.waiting.push((needed, from, sequence, decision.reply));
        self.send_replies();
        self.sync();
        Ok(())
    }

    /// Sees to it that what is about to be written down is true.
    pub(super) fn witness(&mut self, from: usize, event: &Event) -> Result<(), String> {
        match event {
            Event::Used { windows, .. } if self.exactly_once() => {
                let layout = self.layout(from);
                let process = &self.processes[from];
                let Some((_, job)) = self.server.state.jobs().next() else { return Ok(()) };
                let epoch = job.epoch().0;
                for window in windows {
                    let mut steps = 0..layout.steps_of(epoch, *window);
                    let unused = steps.find(|offset| {
                        let step = layout.step(epoch, *window, *offset);
                        !process.history.contains(epoch, step)
                    });
                    if let Some(offset) = unused {
                        return Err(format!(
                            "window {window} counts as used, and its step {offset} was not"
                        ));
                    }
                }
            }
            Event::Released { consumer, .. } if !planted(Mutant::ReassignByTimeout) => {
                self.released_client(*consumer);
            }
            _ => {}
        }
        Ok(())
    }

    /// What a lost client had used, as far as the dispatcher knows, counts.
    pub(super) fn released_client(&mut self, consumer: ConsumerIndex) {
        let Some((_, job)) = self.server.state.jobs().next() else { return };
        let (incarnation, epoch) = (job.incarnation(), job.epoch().0);
        let lost = self.processes.iter().rposition(|process| process.consumer == consumer);
        let Some(lost) = lost else { return };
        let mut used = self.processes[lost].history.before(epoch);
        let layout = self.layout(lost);
        let Some((_, job)) = self.server.state.jobs().next() else { return };
        if epoch < self.setup.epochs {
            for window in (0..layout.windows(epoch).count).map(Window) {
                for offset in 0..layout.steps_of(epoch, window) {
                    let step = layout.step(epoch, window, offset);
                    if job.is_used(window) && self.processes[lost].history.contains(epoch, step) {
                        used.insert(epoch, step);
                    }
                }
            }
        }
        self.inherited.retain(|(known, _)| *known != incarnation);
        self.inherited.push((incarnation, used));
        self.outcome.releases += 1;
    }

    pub(super) fn sync(&mut self) {
        if !self.server.syncing && self.server.synced < self.server.journal.len() {
            self.server.syncing = true;
            let (life, length) = (self.server.life, self.server.journal.len());
            let slow = !self.healed && self.random.chance(30);
            self.soon(1, if slow { 1_000 } else { 10 }, Happening::Synced { life, length });
        }
    }

    pub(super) fn synced(&mut self, length: usize) {
        self.server.syncing = false;
        self.server.synced = length;
        self.send_replies();
        self.sync();
    }

    pub(super) fn send_replies(&mut self) {
        let synced = self.server.synced;
        let mut at = 0;
        while at < self.server.waiting.len() {
            if self.server.waiting[at].0 > synced {
                at += 1;
                continue;
            }
            let (_, to, sequence, reply) = self.server.waiting.remove(at);
            if to == OPERATOR {
                self.released_reply(&reply);
                continue;
            }
            let node = slot_node(self.processes[to].consumer);
            for arrival in self.arrivals(DISPATCHER, node).into_iter().flatten() {
                let reply = Box::new(reply.clone());
                self.at(arrival, Happening::ToProcess { process: to, sequence, reply });
            }
        }
    }

    pub(super) fn send_release(&mut self, slot: usize, incarnation: Incarnation) {
        let job = self.server.state.find(&JobName("job".into()));
        if let (Some(job), Some(true)) = (job, self.slots.get(slot).map(|slot| slot.lost)) {
            let consumer = ConsumerIndex(slot as u32);
            let request = Rc::new(Request::Release { job, incarnation, consumer });
            let what = Happening::ToDispatcher { from: OPERATOR, sequence: slot as u64, request };
            self.soon(1, 20, what);
        }
    }

    /// An operator hears that a client was released: sometimes somebody else takes its place.
    pub(super) fn released_reply(&mut self, reply: &Reply) {
        let lost = self.slots.iter().position(|slot| slot.lost);
        if let (Reply::Released, Some(slot)) = (reply, lost)
            && self.random.chance(500)
        {
            trace!(self, "client {slot} is replaced");
            let rounds = self.slots.iter().filter_map(|slot| slot.process);
            let round = rounds.map(|process| self.processes[process].round).max().unwrap_or(0);
            let Some((incarnation, inherits)) = self.inherited.pop() else { return };
            self.slots[slot] = Slot { inherits, ..Slot::default() };
            let base = self.plan.as_ref().map_or(History::default(), |plan| plan.base);
            let begun = self.launch(slot, Begin::Fresh, inherits, base, round, None);
            debug_assert!(begun.is_ok(), "a client that begins does nothing wrong yet");
            if let Some(process) = self.slots[slot].process {
                self.processes[process].inherits_in = Some(incarnation);
            }
        }
    }

    pub(super) fn crash_dispatcher(&mut self) {
        trace!(self, "the dispatcher crashes");
        let server = &mut self.server;
        server.up = false;
        server.waiting.clear();
        server.syncing = false;
        let unsynced = (server.journal.len() - server.synced) as u64;
        let kept = server.synced + self.random.within(0, unsynced) as usize;
        let torn = kept < server.journal.len() && self.random.chance(500);
        server.journal.truncate(kept);
        if torn {
            server.journal.push(None);
        }
        self.soon(50, 3_000, Happening::DispatcherUp);
    }

    pub(super) fn restart_dispatcher(&mut self) {
        if self.server.up {
            return;
        }
        let server = &mut self.server;
        server.state = State::default();
        server.presence = Presence::new(self.now + server.clock);
        let whole = server.journal.iter().position(Option::is_none).unwrap_or(server.journal.len());
        server.journal[..whole].iter().flatten().for_each(|event| server.state.apply(event));
        if !planted(Mutant::AppendAfterTornTail) {
            server.journal.truncate(whole);
        }
        server.synced = server.journal.len();
        server.up = true;
        server.life += 1;
        trace!(self, "the dispatcher is back, with {whole} events");
    }
}
