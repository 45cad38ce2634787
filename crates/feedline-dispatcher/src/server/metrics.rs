//! How everything stands, as Prometheus reads it.

use super::Shared;
use feedline_rpc::metrics::Family;
use feedline_wire::status::{JobStatus, Rates, Status, WorkerStatus};

pub(crate) fn metrics(shared: &Shared) -> String {
    let mut text = String::new();
    write(&mut text, &super::status::status(shared));
    shared.rules.metrics(&mut text);
    text
}

#[expect(clippy::cast_precision_loss, reason = "metrics are floating-point numbers")]
fn write(text: &mut String, status: &Status) {
    let Status { version, uptime_ms, jobs, workers, datasets, journal, scale } = status;
    let mut info = Family::new(text, "feedline_info", "The release that runs.");
    info.add(&[("version", version)], 1.0);
    let seconds = *uptime_ms as f64 / 1e3;
    Family::one(text, "feedline_uptime_seconds", "For how long it has been serving.", seconds);
    Family::one(text, "feedline_jobs", "Jobs.", jobs.len() as f64);
    Family::one(text, "feedline_datasets", "Datasets.", datasets.len() as f64);
    Family::one(text, "feedline_workers", "Workers that do not end soon.", scale.present);
    Family::one(text, "feedline_workers_wanted", "Workers that the jobs need.", scale.wanted);
    let records = journal.records as f64;
    Family::one(text, "feedline_journal_records", "Records of the journal.", records);
    Family::one(text, "feedline_journal_bytes", "Bytes of the journal.", journal.bytes as f64);
    let full = f64::from(u8::from(journal.full));
    Family::one(text, "feedline_journal_full", "Whether the journal's disk is full.", full);

    let job = |text: &mut String, name, about: &str, value: &dyn Fn(&JobStatus) -> f64| {
        let mut family = Family::new(text, name, about);
        for job in jobs {
            family.add(&[("job", &job.name.0), ("id", &job.job.to_string())], value(job));
        }
    };
    job(text, "feedline_job_epoch", "The open epoch.", &|job| job.epoch.0 as f64);
    job(text, "feedline_job_windows_used", "Used windows of the epoch.", &|job| {
        job.windows_used as f64
    });
    job(text, "feedline_job_windows", "Windows of the epoch.", &|job| job.windows_total as f64);
    job(text, "feedline_job_windows_held", "Windows that clients hold.", &|job| {
        job.windows_held as f64
    });
    job(text, "feedline_job_clients", "Clients in their seats.", &|job| {
        job.consumers.iter().filter(|client| client.attached).count() as f64
    });
    job(text, "feedline_job_waiting_share", "Share of time that trainers wait.", &|job| {
        job.waiting
    });
    job(text, "feedline_job_samples_per_second", "Samples used.", &|job| job.rates.samples);
    job(text, "feedline_job_bytes_per_second", "Bytes used.", &|job| job.rates.bytes);

    let worker = |text: &mut String, name, about: &str, value: &dyn Fn(&WorkerStatus) -> f64| {
        let mut family = Family::new(text, name, about);
        for status in workers {
            let key = status.worker.key.to_string();
            family.add(&[("worker", &status.worker.name), ("key", &key)], value(status));
        }
    };
    worker(text, "feedline_worker_busy_share", "Share of cores that is busy.", &|one| one.busy);
    worker(text, "feedline_worker_memory_bytes", "Bytes held.", &|one| one.memory as f64);
    worker(text, "feedline_worker_connections", "Connections.", &|one| f64::from(one.connections));
    worker(text, "feedline_worker_samples_per_second", "Samples served.", &|one| {
        let Rates { samples, .. } = one.rates;
        samples
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedline_wire::control::{Worker, WorkerKey};

    #[test]
    fn names_cannot_break_out_of_their_labels() {
        let worker = Worker {
            key: WorkerKey(1),
            name: "a\"} 1\nevil \\".into(),
            addresses: vec![],
            version: String::new(),
            cores: 1,
            draining: false,
        };
        let worker = WorkerStatus {
            worker,
            silent_ms: 0,
            busy: 0.5,
            memory: 3,
            connections: 1,
            rates: Rates::default(),
            jobs: vec![],
        };
        let status = Status { workers: vec![worker], ..Status::default() };
        let mut text = String::new();
        write(&mut text, &status);
        let line =
            r#"feedline_worker_busy_share{worker="a\"} 1\nevil \\",key="0000000000000001"} 0.5"#;
        assert!(text.lines().any(|found| found == line), "{text}");
        for line in text.lines() {
            assert!(line.starts_with("# ") || line.starts_with("feedline_"), "{line}");
        }
    }
}
