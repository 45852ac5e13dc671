//! Mooncake Store's own segment mount, by its unmodified wheel in a Python of the user's.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;

const SCRIPT: &str = include_str!("mooncake_mount.py");

/// What one round of the script says; the script tells what is counted.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Round {
    /// Seconds of the segment's mount, over TCP.
    pub mount_seconds: f64,
    /// Bytes that were touched.
    pub touched_bytes: u64,
    /// Seconds that its touching takes for the protocol rdma, registration left out.
    pub rdma_touch_seconds: Option<f64>,
}

/// The running script: a round whenever it is asked for one.
#[derive(Debug)]
pub struct Mooncake {
    child: Child,
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Mooncake {
    /// Starts it.
    ///
    /// # Errors
    /// Why it does not run, in words.
    pub fn start(
        python: &Path,
        bytes: u64,
        page_bytes: u64,
        rounds: usize,
    ) -> Result<Self, String> {
        let mut command = Command::new(python);
        command.args(["-I", "-c", SCRIPT, "--interactive"]);
        command.args([
            "--bytes",
            &bytes.to_string(),
            "--page",
            &page_bytes.to_string(),
        ]);
        command.args(["--rounds", &rounds.to_string()]);
        if page_bytes > siding_fabric::base_page_bytes() {
            command.arg("--rdma-touch");
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", python.display()))?;
        let asks = child.stdin.take();
        let answers = child.stdout.take().ok_or("its output could not be read")?;
        Ok(Self {
            child,
            asks,
            answers: BufReader::new(answers),
        })
    }

    /// Runs one round.
    ///
    /// # Errors
    /// Why there is no answer, in words.
    pub fn round(&mut self) -> Result<Round, String> {
        let asks = self.asks.as_mut().ok_or("it takes no questions")?;
        let asked = asks.write_all(b"go\n").and_then(|()| asks.flush());
        let mut line = String::new();
        let read = asked.and_then(|()| self.answers.read_line(&mut line));
        match read {
            Ok(length) if length > 0 => serde_json::from_str(&line)
                .map_err(|error| format!("unexpected answer {line:?}: {error}")),
            _ => {
                Err("Mooncake's mount ended without an answer (its messages are above)".to_owned())
            }
        }
    }
}

impl Drop for Mooncake {
    fn drop(&mut self) {
        // The end of its input ends it, and its master with it.
        self.asks.take();
        let _ = self.child.wait();
    }
}
