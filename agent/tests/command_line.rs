//! The agent as a command: what it answers to a wrong start, and its exit codes.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::TcpListener;
use std::process::{Command, Stdio};

/// What it was asked, the exit code, and what the message must name.
type Case<'a> = (&'a [&'a str], i32, &'a [&'a str]);

fn agent(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_siding-agent"));
    command.env_remove("NODE_NAME").stdin(Stdio::null());
    let output = command.args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn a_start_that_cannot_work_is_told_with_its_exit_code() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let cases: [Case<'_>; 5] = [
        (&["--help"], 0, &["NodeTopology", "Exit codes"]),
        (&["--interval", "0"], 2, &["--interval", "0.1 to 3600"]),
        (&["--listen", "9601"], 2, &["--listen", "9601"]),
        (&["--listen", "127.0.0.1:0"], 1, &["NODE_NAME"]),
        (&["--node-name", "n", "--listen", &taken], 1, &[&taken]),
    ];
    for (arguments, code, names) in cases {
        let (found, said) = agent(arguments);
        assert_eq!(found, Some(code), "{arguments:?}: {said}");
        for name in names {
            assert!(said.contains(name), "{arguments:?}: {said}");
        }
    }
}
