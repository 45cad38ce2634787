//! Keys, tokens, certificates, and what the commands that serve say when they should not.
#![expect(clippy::unwrap_used, reason = "in a test, unwrap says that the test ends otherwise")]

use feedline_wire::token::{AUDIENCE, Key, Role};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feedline"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FEEDLINE_")) {
        command.env_remove(name);
    }
    command.args(args).current_dir(folder);
    command
}

fn feedline(folder: &Path, args: &[&str]) -> Output {
    command(folder, args).output().unwrap()
}

/// What a successful command prints.
fn text(folder: &Path, args: &[&str]) -> String {
    let output = feedline(folder, args);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

/// What a command says that was called wrongly.
fn wrong(folder: &Path, args: &[&str]) -> String {
    let output = feedline(folder, args);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {complaint}");
    assert!(!complaint.contains("panicked"), "{complaint}");
    complaint
}

/// A command that serves, until it is dropped.
struct Serving(Child);

impl Serving {
    /// With the first line that it prints.
    fn start(folder: &Path, args: &[&str]) -> (Self, String) {
        let mut child = command(folder, args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut serving = Self(child);
        if line.is_empty() {
            let complaint = serving.end();
            panic!("{args:?}: {complaint}");
        }
        (serving, line)
    }

    /// Ends it; what it wrote to stderr.
    fn end(&mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let mut complaint = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut complaint).unwrap();
        }
        self.0.wait().unwrap();
        complaint
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn keys_are_made_once_and_tokens_say_what_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    text(folder, &["token", "--new-key", "key"]);
    assert!(wrong(folder, &["token", "--new-key", "key"]).contains("not overwritten"));
    let key = Key::read(&folder.join("key")).unwrap();
    let now = SystemTime::now();
    for role in Role::ALL {
        let name = role.to_string();
        let printed = text(folder, &["token", "--key", "key", "--role", &name]);
        assert_eq!(key.verify(printed.trim(), AUDIENCE, now).unwrap().role, role);
    }
    let args = ["token", "--key", "key", "--role", "client", "--ttl", "2h", "--jobs", "team/"];
    let printed = text(folder, &[&args[..], &["--audience", "south", "--out", "token"]].concat());
    assert_eq!(printed, "");
    let written = std::fs::read_to_string(folder.join("token")).unwrap();
    let token = key.verify(written.trim(), "south", now).unwrap();
    assert_eq!(token.jobs.as_deref(), Some("team/"));
    let late = now + Duration::from_secs(3 * 3600);
    assert!(key.verify(written.trim(), "south", late).is_err());
    for (args, words) in [
        (&["token", "--key", "key"][..], "--role"),
        (&["token", "--role", "client"], "--new-key FILE makes one"),
        (&["token", "--key", "nowhere", "--role", "client"], "nowhere"),
        (&["token", "--key", "key", "--role", "king"], "client, worker and operator"),
        (&["token", "--key", "key", "--role", "client", "--ttl", "soon"], "is no time"),
        (&["token", "--key", "token", "--role", "client"], "is no key file"),
        (&["token", "--new-key", "other", "--role", "client"], "cannot be used with"),
    ] {
        let complaint = wrong(folder, args);
        assert!(complaint.contains(words), "{words}: {complaint}");
    }
}

#[test]
fn certificates_are_made_for_the_names_that_are_given_and_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let said = text(folder, &["certs", "made", "--name", "head", "--name", "10.0.0.3"]);
    for words in
        ["head, 10.0.0.3", "localhost", "made/server.pem", "made/ca.pem", "made/client.key"]
    {
        assert!(said.contains(words), "{said}");
    }
    assert!(wrong(folder, &["certs", "made"]).contains("ca.pem"));
    assert!(wrong(folder, &["certs", "other", "--name", "no name"]).contains("no name"));
}

#[test]
fn other_hosts_are_served_only_with_all_that_takes_and_the_rest_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    text(folder, &["token", "--new-key", "key"]);
    text(folder, &["certs", "certs"]);
    let key = ["--key", "key"];
    let tls = ["--tls-certificate", "certs/server.pem", "--tls-key", "certs/server.key"];
    let dispatcher = ["dispatcher", "--listen", "0.0.0.0:0", "--journal", "journal"];
    let worker = ["worker", "--listen", "0.0.0.0:0", "--dispatcher", "127.0.0.1:1"];
    for command in [&dispatcher[..], &worker] {
        let complaint = wrong(folder, command);
        for words in ["--key FILE", "feedline token --new-key", "feedline certs", "--insecure"] {
            assert!(complaint.contains(words), "{complaint}");
        }
        let complaint = wrong(folder, &[command, &key].concat());
        assert!(!complaint.contains("--key FILE (") && complaint.contains("--tls-certificate"));
        assert!(wrong(folder, &[command, &tls].concat()).contains("--key FILE"));
    }
    let guarded = [&worker[..], &key, &tls].concat();
    assert!(wrong(folder, &guarded).contains("--allow-path DIR"));
    let confined = [&guarded[..], &["--allow-path", "."]].concat();
    assert!(wrong(folder, &confined).contains("--advertise HOST"));
    let nowhere = [&guarded[..], &["--allow-path", "nowhere", "--advertise", "here"]].concat();
    let output = feedline(folder, &nowhere);
    assert!(String::from_utf8_lossy(&output.stderr).contains("nowhere"));
    for (url, words) in [
        ("s3://", "no bucket"),
        ("http://169.254.169.254/", "never read"),
        ("https://user:canary@host/", "before @"),
        ("/data", "begins like s3://bucket/"),
        ("file:///data", "none of the schemes"),
    ] {
        let complaint =
            wrong(folder, &[&guarded[..], &["--allow-url", url, "--advertise", "here"]].concat());
        assert!(complaint.contains("--allow-url") && complaint.contains(words), "{complaint}");
        assert!(!complaint.contains("canary"), "{complaint}");
    }
    let broken =
        [&dispatcher[..], &key, &["--tls-certificate", "key", "--tls-key", "key"]].concat();
    let output = feedline(folder, &broken);
    assert!(String::from_utf8_lossy(&output.stderr).contains("key holds no certificate"));
    assert!(wrong(folder, &["cluster", "--listen", "0.0.0.0:0"]).contains("feedline dispatcher"));
    let (mut one, line) = Serving::start(folder, &[&dispatcher[..], &key, &tls].concat());
    assert!(line.contains("0.0.0.0"), "{line}");
    let (mut two, line) =
        Serving::start(folder, &[&confined[..], &["--advertise", "worker-1"]].concat());
    assert!(line.contains("serves at worker-1:"), "{line}");
    one.end();
    two.end();
}

#[test]
fn a_service_with_tokens_logs_who_comes_as_json_and_serves_those_who_may() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    text(folder, &["token", "--new-key", "key"]);
    text(folder, &["certs", "certs"]);
    for role in ["worker", "client", "operator"] {
        text(folder, &["token", "--key", "key", "--role", role, "--out", role]);
    }
    let tls = ["--tls-certificate", "certs/server.pem", "--tls-key", "certs/server.key"];
    let listen = ["dispatcher", "--listen", "127.0.0.1:0", "--journal", "journal", "--key", "key"];
    let logs = ["--log-level", "info", "--log-format", "json"];
    let (mut dispatcher, line) = Serving::start(folder, &[&listen[..], &tls, &logs].concat());
    let url = line.trim().strip_prefix("listening at ").unwrap();
    let ask = ["--ca", "certs/ca.pem"];
    let worker =
        ["worker", "--dispatcher", url, "--token", "worker", "--key", "key", "--name", "one"];
    let (mut worker, _) =
        Serving::start(folder, &[&worker[..], &ask, &tls, &["--log-level", "trace"]].concat());
    let status =
        |token: &str| feedline(folder, &[&["status", url, "--token", token], &ask[..]].concat());
    let end = std::time::Instant::now() + Duration::from_secs(30);
    loop {
        let output = status("operator");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        if String::from_utf8_lossy(&output.stdout).contains("one") {
            break;
        }
        assert!(std::time::Instant::now() < end, "the worker never came");
        std::thread::sleep(Duration::from_millis(100));
    }
    let refused = status("client");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("role client"));
    // Tokens may come from the environment.
    let output = command(folder, &["status", url])
        .env("FEEDLINE_TOKEN_FILE", "operator")
        .env("FEEDLINE_CA", "certs/ca.pem")
        .output()
        .unwrap();
    assert!(output.status.success());
    let (worker, log) = (worker.end(), dispatcher.end());
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let came = lines.iter().find(|line| line["message"] == "a worker has come").unwrap();
    assert_eq!(came["name"], "one");
    assert!(came["worker"].is_string(), "{came}");
    assert!(worker.contains("TRACE") && worker.contains("the worker serves"), "{worker}");
    for secret in ["key", "worker", "client", "operator"] {
        let secret = std::fs::read_to_string(folder.join(secret)).unwrap();
        let secret = secret.trim().rsplit(['.', ' ']).next().unwrap();
        assert!(secret.len() == 64 && !worker.contains(secret) && !log.contains(secret));
    }
}
