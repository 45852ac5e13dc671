//! Files that users name for a result: nothing is lost that was there and was not to be replaced.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use siding_tests::{Said, binary, scratch, siding_as_nobody};

/// Runs `siding` in a shell, which opens what it writes to.
fn shell(folder: &Path, line: &str) -> Said {
    let mut shell = Command::new("sh");
    let line = format!("siding() {{ {} \"$@\"; }}; {line}", binary().display());
    Said::of(shell.args(["-c", &line]).current_dir(folder))
}

/// That these parts are in a text, in this order.
fn assert_in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else {
            panic!("no {part:?} in its place in {text:.2000}");
        };
        rest = after;
    }
}

#[test]
fn what_a_descriptor_leads_to_is_added_to() {
    let last = "siding-simulate: median_error";
    for (line, parts) in [
        (
            "siding simulate --svg /dev/stdout >> log",
            ["precious\n<svg", "</svg>", last],
        ),
        (
            "siding simulate --svg /dev/stdout > log",
            ["<svg", "</svg>", last],
        ),
        (
            "siding simulate --svg /proc/self/fd/1 >> log",
            ["precious\n<svg", "</svg>", last],
        ),
        (
            "siding simulate --svg /dev/stderr 2>> log >> log",
            ["precious\n<svg", "</svg>", last],
        ),
        (
            "{ siding simulate --svg /dev/fd/3 3>> log; echo end >> log; }",
            ["precious\n<svg", "</svg>", "end"],
        ),
        (
            "{ echo begin >&3; siding simulate --svg /dev/fd/3; echo end >&3; } 3> log",
            ["begin\n<svg", "</svg>", "end"],
        ),
        (
            "ln -s /dev/stdout link; siding simulate --svg link >> log; test -L link",
            ["precious\n<svg", "</svg>", last],
        ),
    ] {
        let scratch = scratch();
        let log = scratch.path().join("log");
        fs::write(&log, "precious\n").unwrap();
        let said = shell(scratch.path(), line);
        assert_eq!(said.code, Some(0), "{line}: {}", said.err);
        assert_in_order(&fs::read_to_string(&log).unwrap(), &parts);
    }
}

#[test]
fn a_capture_is_added_to_a_log_too() {
    let scratch = scratch();
    let (log, root) = (scratch.path().join("log"), scratch.path().join("root"));
    fs::create_dir(&root).unwrap();
    fs::write(&log, "precious\n").unwrap();
    let line = "siding topology --root root --capture /dev/stdout -o json >> log";
    let said = shell(scratch.path(), line);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let log = fs::read(&log).unwrap();
    let log = String::from_utf8_lossy(&log);
    assert_in_order(&log, &["precious\n", "\"findings\""]);
}

#[test]
fn what_is_read_from_a_pipe_is_written_into_it() {
    let scratch = scratch();
    let line = "mkfifo pipe; cat pipe > copy & siding simulate --svg pipe; wait; test -p pipe";
    let said = shell(scratch.path(), line);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let copy = fs::read_to_string(scratch.path().join("copy")).unwrap();
    assert_in_order(&copy, &["<svg", "</svg>"]);
}

#[test]
fn a_file_in_a_folder_that_can_not_be_written_is_written_in_place() {
    let scratch = scratch();
    let folder = scratch.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let file = folder.join("picture.svg");
    fs::write(&file, "x".repeat(1 << 20)).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
    let draw = |path: &Path| {
        let mut command = siding_as_nobody(scratch.path());
        Said::of(command.args(["simulate", "--svg"]).arg(path))
    };
    let said = draw(&file);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
    let refused = draw(&folder.join("new.svg"));
    let words = format!(
        "its folder {} can't be written: Permission denied",
        folder.display()
    );
    refused.assert_refused(1, &words);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

/// A file that a runtime mounts on its own can't be replaced, in whatever folder.
#[test]
fn a_file_that_is_a_mount_is_written_in_place() {
    let scratch = scratch();
    for name in ["picture.svg", "behind"] {
        File::create(scratch.path().join(name)).unwrap();
    }
    let script = format!(
        "mount --bind behind picture.svg && exec {} simulate --svg picture.svg",
        binary().display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let said = Said::of(command.current_dir(scratch.path()));
    assert_eq!(said.code, Some(0), "{}", said.err);
    let behind = fs::read_to_string(scratch.path().join("behind")).unwrap();
    assert!(behind.starts_with("<svg"), "{behind:.100}");
}

/// A failure leaves what was there.
#[test]
fn a_full_disk_costs_nothing_that_was_there() {
    let scratch = scratch();
    let file = scratch.path().join("picture.svg");
    fs::write(&file, "precious").unwrap();
    let said = shell(
        scratch.path(),
        "ulimit -f 1; siding simulate --svg picture.svg",
    );
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
}
