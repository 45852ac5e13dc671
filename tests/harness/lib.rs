//! What the end-to-end tests stand on: the real binary, the real kernel, seen from outside.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod cluster;
pub mod http;
pub mod kernel;
pub mod product;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// The longest that anything here is waited for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Tries again, five times a second, until it is so.
///
/// # Panics
/// Where it does not become so within [`PATIENCE`], with why not.
pub fn eventually<T>(mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(found) => return found,
            Err(why) => assert!(Instant::now() < deadline, "{why}"),
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// `siding`, of the same build profile as the tests: what is measured is as it is shipped.
///
/// # Panics
/// Where it was not built.
#[must_use]
pub fn binary() -> PathBuf {
    built(&profile().join("siding"), "cargo build --release -p siding")
}

/// `siding-operator` or `siding-agent` as the unit tests build them, with the checks of the dev
/// profile: they wait for others mostly, and building them once more took a sixth of all testing.
///
/// # Panics
/// Where it was not built.
#[must_use]
pub fn controller(package: &str) -> PathBuf {
    let debug = profile().with_file_name("debug");
    built(&debug.join(package), &format!("cargo build -p {package}"))
}

fn built(binary: &Path, command: &str) -> PathBuf {
    let path = binary.display();
    assert!(
        binary.exists(),
        "{path} is not there: run tests/run, or {command}"
    );
    binary.to_owned()
}

/// Where cargo puts what it builds in the tests' profile.
fn profile() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.ancestors().nth(2).unwrap().to_owned()
}

/// A `siding` command with a clean environment.
#[must_use]
pub fn siding() -> Command {
    let mut command = Command::new(binary());
    command
        .env_remove("MC_MAX_CONCURRENT_REG_MR")
        .env_remove("KUBERNETES_SERVICE_HOST");
    command.stdin(Stdio::null());
    command
}

/// A `siding` command as a user without any privilege, who may pin 8 MiB.
#[must_use]
pub fn siding_as_nobody(home: &Path) -> Command {
    siding_as(65_534, home, &["--memlock=8388608:8388608"])
}

/// A `siding` command as a user without any privilege and with these limits, as `prlimit` has them.
/// A user of one test alone has no other processes that count.
#[must_use]
pub fn siding_as(user: u32, home: &Path, limits: &[&str]) -> Command {
    let binary_for_all = home.join("siding");
    if !binary_for_all.exists() {
        fs::copy(binary(), &binary_for_all).unwrap();
    }
    // Limits first: who may do nothing may not raise them.
    let mut command = Command::new("prlimit");
    command
        .args(limits)
        .args(["--", "setpriv"])
        .args([
            &format!("--reuid={user}"),
            &format!("--regid={user}"),
            "--clear-groups",
            "--bounding-set=-all",
            "--inh-caps=-all",
        ])
        .arg(binary_for_all)
        .env_remove("MC_MAX_CONCURRENT_REG_MR")
        .stdin(Stdio::null());
    command
}

/// A scratch directory in memory that every user may enter.
#[must_use]
pub fn scratch() -> TempDir {
    let directory = tempfile::Builder::new()
        .prefix("siding-test-")
        .tempdir_in("/dev/shm")
        .unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(directory.path(), open).unwrap();
    directory
}

/// Only one test at a time changes what the whole machine shares (huge pages, sysctls, pins).
#[must_use]
pub fn whole_machine() -> File {
    let path = std::env::temp_dir().join("siding-tests-whole-machine.lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    file
}

/// What a command said.
pub struct Said {
    /// Exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Said {
    /// Runs a command to its end.
    #[must_use]
    pub fn of(command: &mut Command) -> Self {
        Self::from(command.output().unwrap())
    }

    /// Its output as JSON, where it ended well.
    #[must_use]
    pub fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.err);
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }

    /// That it ended with this code, having printed nothing but an error with these words.
    ///
    /// # Panics
    /// Where it did otherwise.
    pub fn assert_refused(&self, code: i32, words: &str) {
        assert_eq!(
            (self.code, self.out.as_str()),
            (Some(code), ""),
            "{}",
            self.err
        );
        assert!(self.err.contains(words), "{words:?} is not in {}", self.err);
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A `siding` that serves. Killed on drop.
pub struct Server {
    child: Child,
    /// Where its HTTP listens.
    pub address: String,
    log: Receiver<String>,
}

impl Server {
    /// Starts it and waits until it says where it listens.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        let mut server = Self::start_silently(command);
        let line = server.logged("serving HTTP on http://");
        server.address = line
            .rsplit("http://")
            .next()
            .unwrap()
            .split(['"', ' '])
            .next()
            .unwrap()
            .to_owned();
        server
    }

    /// Starts it without waiting for anything; its address stays unknown.
    #[must_use]
    pub fn start_silently(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, log) = channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Self {
            child,
            address: String::new(),
            log,
        }
    }

    /// Waits for a log line with these words and gives it.
    #[must_use]
    pub fn logged(&self, words: &str) -> String {
        let mut seen = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while let Ok(line) = self
            .log
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            if line.contains(words) {
                return line;
            }
            seen.push(line);
        }
        panic!("no log line with {words:?} among:\n{}", seen.join("\n"));
    }

    /// Waits until a path answers with this status code, and gives the body.
    #[must_use]
    pub fn until(&self, path: &str, code: u16) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = http::get(&self.address, path);
            match answer {
                Ok((found, body)) if found == code => return body,
                other if Instant::now() > deadline => panic!("{path}: {other:?}, not {code}"),
                _ => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Waits until it is mounted, and gives `/v1/status`.
    #[must_use]
    pub fn ready(&self) -> Value {
        let _ = self.until("/readyz", 200);
        serde_json::from_str(&self.until("/v1/status", 200)).unwrap()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal and waits for the end.
    pub fn end(&mut self, signal: Signal) -> ExitStatus {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
