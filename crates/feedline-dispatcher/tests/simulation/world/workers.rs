//! Workers: what they send is a function of what they are asked for, and of nothing else.

use super::*;

impl World {
    pub(super) fn serve(&mut self, worker: u32, from: usize, fetch: &Fetch, layout: &Layout) {
        if !self.workers_up[worker as usize] {
            if self.random.chance(700) {
                self.soon(1, 50, Happening::WorkerGone { process: from, worker });
            }
            return;
        }
        let steps = layout.steps_of(fetch.epoch.0, fetch.window);
        let mut begin = fetch.from.0;
        if planted(Mutant::WorkerKeepsOffset) {
            let key = (worker, fetch.incarnation.0, fetch.epoch.0, fetch.window.0);
            let kept = self.worker_offsets.entry(key).or_insert(begin);
            begin = *kept;
            *kept = (begin + fetch.most).min(steps);
        }
        let end = (begin + fetch.most).min(steps);
        let step = |offset| layout.step(fetch.epoch.0, fetch.window, offset);
        let slow = self.workers_slow[worker as usize] && !self.healed;
        let (least, most) = if slow { (1_500, 6_000) } else { (1, 60) };
        let computed = self.now + self.random.within(least, most);
        let node = slot_node(self.processes[from].consumer);
        // The steps come in one piece or in two.
        let middle = self.random.within(begin.min(end), end);
        for (begin, to) in [(begin, middle), (middle, end)] {
            if begin >= to && to != end {
                continue;
            }
            let data = Data {
                incarnation: fetch.incarnation,
                epoch: fetch.epoch,
                window: fetch.window,
                offset: feedline_wire::Offset(match planted(Mutant::WorkerKeepsOffset) {
                    true => fetch.from.0,
                    false => begin,
                }),
                steps: (begin..to).map(step).collect(),
                end: to == steps,
            };
            let waits = computed - self.now;
            for arrival in self.arrivals(worker_node(worker), node).into_iter().flatten() {
                let what = Happening::Data { process: from, worker, data: data.clone() };
                self.at(arrival + waits, what);
            }
        }
    }
}
