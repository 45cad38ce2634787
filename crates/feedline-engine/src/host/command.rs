//! How a host is started: the command, what it may see, and what it may use.

use feedline_core::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// What a host sees of the environment of the process that starts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Environment {
    /// All of it: the functions are those of whoever runs this process.
    Whole,
    /// What programs need to run, and nothing that may be secret.
    #[default]
    Plain,
}

/// Variables that a host sees in any case, by their beginnings.
const PLAIN: [&str; 20] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_",
    "TZ",
    "TMPDIR",
    "TERM",
    "PYTHON",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "LD_LIBRARY_PATH",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "NUMBA_",
    "RUST_BACKTRACE",
    "LLVM_PROFILE_FILE",
];

/// Words in names of variables that may be secret, whatever they begin with.
const SECRET: [&str; 5] = ["TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "KEY"];

/// A command that speaks what a host does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCommand {
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// What it sees of the environment.
    pub environment: Environment,
    /// Variables that it sees besides.
    pub variables: Vec<(OsString, OsString)>,
    /// Bytes of address space that each process may have; any number if none are given.
    pub memory: Option<u64>,
}

impl HostCommand {
    /// A command of these words.
    #[must_use]
    pub fn new(words: Vec<OsString>) -> Self {
        Self { words, environment: Environment::default(), variables: Vec::new(), memory: None }
    }

    /// A command as it is written in a shell: words parted by blanks, or quoted.
    ///
    /// # Errors
    ///
    /// If there is none, or a quote is not closed.
    pub fn parse(line: &str) -> Result<Self> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for letter in line.chars() {
            match (quote, letter) {
                (Some(open), letter) if open == letter => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(letter);
                    word.get_or_insert_default();
                }
                (None, letter) if letter.is_whitespace() => {
                    words.extend(word.take().map(OsString::from));
                }
                (_, letter) => word.get_or_insert_default().push(letter),
            }
        }
        words.extend(word.map(OsString::from));
        if words.is_empty() || quote.is_some() {
            return Err(Error::pipeline(format!(
                "functions: {line:?} is no command; write it like \"python -m feedline.host\""
            )));
        }
        Ok(Self::new(words))
    }

    /// The command, for messages.
    #[must_use]
    pub fn line(&self) -> String {
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    /// Starts a process whose standard input is `socket`. It ends with the thread that calls this.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(super) fn start(&self, socket: OwnedFd) -> Result<Child> {
        let failed = |error| Error::unavailable(format!("the host {:?}", self.line()), error);
        let Some((program, arguments)) = self.words.split_first() else {
            return Err(Error::pipeline("functions: the command has no words"));
        };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::from(socket));
        let errors = std::io::stderr().as_fd().try_clone_to_owned();
        command.stdout(errors.map_or_else(|_| Stdio::null(), Stdio::from));
        if self.environment == Environment::Plain {
            command.env_clear();
            command.envs(std::env::vars_os().filter(|(name, _)| is_plain(name)));
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        // A group of its own: Ctrl-C is for the trainer, and ending the group ends what it started.
        command.process_group(0);
        let memory = self.memory;
        #[cfg(target_os = "linux")]
        // SAFETY: between fork and exec only system calls are made, which allocate nothing.
        unsafe {
            command.pre_exec(move || confine(memory));
        }
        command.spawn().map_err(failed)
    }
}

fn is_plain(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let upper = name.to_ascii_uppercase();
    PLAIN.iter().any(|beginning| name.starts_with(beginning))
        && !SECRET.iter().any(|word| upper.contains(word))
}

/// What the new process gives up before it becomes the host.
#[cfg(target_os = "linux")]
fn confine(memory: Option<u64>) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, Signal};
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // Whatever it starts has no more rights than it has.
    rustix::thread::set_no_new_privs(true)?;
    let limit = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
    rustix::process::setrlimit(Resource::Core, limit(0))?;
    if let Some(bytes) = memory {
        rustix::process::setrlimit(Resource::As, limit(bytes))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_as_a_shell_would() {
        let words = |line: &str| HostCommand::parse(line).map(|command| command.words);
        assert_eq!(words("python -m  feedline.host").unwrap(), ["python", "-m", "feedline.host"]);
        assert_eq!(words("'/my python' -c \"\"").unwrap(), ["/my python", "-c", ""]);
        for wrong in ["", "  ", "python 'x"] {
            assert!(words(wrong).unwrap_err().to_string().contains("no command"), "{wrong}");
        }
    }

    #[test]
    fn secrets_are_not_handed_on() {
        for name in ["PATH", "LC_ALL", "PYTHONPATH", "OMP_NUM_THREADS"] {
            assert!(is_plain(OsStr::new(name)), "{name}");
        }
        for name in ["FEEDLINE_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PYTHON_KEYRING", "X"] {
            assert!(!is_plain(OsStr::new(name)), "{name}");
        }
    }
}
