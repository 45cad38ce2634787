//! What the commands that serve say while they do: lines on stderr, for people or programs.

use clap::ValueEnum;
use std::io;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A line of text each
    Text,
    /// A JSON object each
    Json,
}

/// What is worth a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// What ends it
    Error,
    /// And what somebody should look after
    Warn,
    /// And who comes and goes
    Info,
    /// And every connection
    Debug,
    /// And everything else, also of the libraries below
    Trace,
}

/// What a command that serves says while it does.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Logs")]
pub(crate) struct Logs {
    /// How lines of the log look
    #[arg(long, value_name = "FORMAT", default_value = "text", env = "FEEDLINE_LOG_FORMAT")]
    log_format: Format,
    /// What is worth a line on stderr
    #[arg(long, value_name = "LEVEL", default_value = "warn", env = "FEEDLINE_LOG_LEVEL")]
    log_level: Level,
}

impl Logs {
    /// Writes lines from now on. A process that has a log of its own keeps it.
    pub(crate) fn start(&self) {
        let level = match self.log_level {
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
            Level::Trace => LevelFilter::TRACE,
        };
        // What libraries have to say is rarely for operators.
        let others =
            if self.log_level == Level::Trace { level } else { level.min(LevelFilter::WARN) };
        let worth = Targets::new().with_default(others).with_target("feedline", level);
        let lines = fmt::layer().with_writer(io::stderr).with_ansi(false);
        let log = registry().with(worth);
        // It fails if there is a log already: that one is good enough.
        let _ = match self.log_format {
            Format::Text => tracing::subscriber::set_global_default(log.with(lines)),
            Format::Json => {
                let lines = lines.json().flatten_event(true);
                tracing::subscriber::set_global_default(log.with(lines))
            }
        };
    }
}
