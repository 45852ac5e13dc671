//! Bad input: each with its message, none with a panic, and nothing left behind.

use std::fs;
use std::path::Path;

use siding_tests::kernel::Counters;
use siding_tests::{Said, scratch, siding, whole_machine};

/// A command line, the exit code, and what the message must say.
struct Case {
    arguments: &'static [&'static str],
    code: i32,
    says: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        arguments: &["mount"],
        code: 2,
        says: &["--segment"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=0"],
        code: 2,
        says: &["size", "0"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=1Gi+1"],
        code: 2,
        says: &["size", "1Gi+1"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=1073741825"],
        code: 2,
        says: &["segments[kv].size", "1073741825", "1Gi", "1048580Ki"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=5Mi,page=2Mi"],
        code: 2,
        says: &["size", "5Mi", "4Mi", "6Mi"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=9223372036854775808"],
        code: 2,
        says: &["size", "9223372036854775808"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=1.5"],
        code: 2,
        says: &["size", "1.5"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=abc"],
        code: 2,
        says: &["size", "abc", "1Gi"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=-1Gi"],
        code: 2,
        says: &["size", "-1Gi"],
    },
    Case {
        arguments: &["mount", "--segment", "kv="],
        code: 2,
        says: &["size"],
    },
    Case {
        arguments: &["mount", "--segment", "kv"],
        code: 2,
        says: &["NAME=SIZE"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=8Gi,page=8Gi"],
        code: 3,
        says: &["segments[kv].page", "8Gi", "2Mi", "auto"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=1Gi,page=3Mi"],
        code: 2,
        says: &["page", "3Mi", "2Mi"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=1Gi,pages=2Mi"],
        code: 2,
        says: &["pages", "page"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=4Ki,numa=999"],
        code: 3,
        says: &["segments[kv].numa", "999", "local"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=4Ki,numa=x"],
        code: 2,
        says: &["numa", "x", "local"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=4Ki", "--segment", "kv=8Ki"],
        code: 2,
        says: &["name", "kv"],
    },
    Case {
        arguments: &["mount", "--segment", "a/b=4Ki"],
        code: 2,
        says: &["name", "a/b"],
    },
    Case {
        arguments: &["mount", "--segment", "KV=4Ki"],
        code: 2,
        says: &["name", "KV"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=1Pi"],
        code: 3,
        says: &["segments[kv].size", "1Pi", "available"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=1Pi,page=2Mi"],
        code: 3,
        says: &["segments[kv].page", "536870912", "nr_hugepages"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=4Ki", "--cap", "0"],
        code: 2,
        says: &["cap", "0", "unbounded"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=4Ki", "--cap", "-1"],
        code: 2,
        says: &["cap", "-1"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=4Ki", "--cap", "abc"],
        code: 2,
        says: &["cap", "abc"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=4Ki", "--cap", "8x"],
        code: 2,
        says: &["cap", "8x"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=4Ki", "--cap", ""],
        code: 2,
        says: &["cap"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=4Ki", "--touch-threads", "0"],
        code: 2,
        says: &["touch", "0"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=4Ki", "--backend", "verbs"],
        code: 2,
        says: &["backend", "verbs", "auto"],
    },
    Case {
        arguments: &["mount", "--segment", "kv=4Ki", "--log-level", "lud=="],
        code: 2,
        says: &["logging.level", "lud=="],
    },
    Case {
        arguments: &["run", "--config", "/nonexistent/siding.yaml"],
        code: 2,
        says: &["/nonexistent/siding.yaml"],
    },
    Case {
        arguments: &["run", "--config", "/"],
        code: 2,
        says: &["directory"],
    },
    Case {
        arguments: &["bench", "mount", "--size", "0"],
        code: 2,
        says: &["size"],
    },
    Case {
        arguments: &["bench", "mount", "--page", "transparent"],
        code: 2,
        says: &["--page", "2Mi"],
    },
    Case {
        arguments: &["plan", "--factor", "-1"],
        code: 2,
        says: &["--factor <F>", "above 0"],
    },
    Case {
        arguments: &["simulate", "--sweep", "--factor", "-1"],
        code: 2,
        says: &["--factor <F>", "above 0"],
    },
    Case {
        arguments: &["plan", "--gpus", "1", "--nics", "1", "--segment", "-1Gi"],
        code: 2,
        says: &["--segment", "'-1Gi' is negative"],
    },
    Case {
        arguments: &["mount", "--segment", "-1Gi"],
        code: 2,
        says: &["--segment", "NAME=SIZE"],
    },
    Case {
        arguments: &["bench", "registration", "--cap", "-1"],
        code: 2,
        says: &["--cap", "'-1' is not a cap"],
    },
    Case {
        arguments: &["bench", "registration", "--page", "-1"],
        code: 2,
        says: &["--page", "'-1' is not a page size"],
    },
    Case {
        arguments: &["bench", "mount", "--size", "-1"],
        code: 2,
        says: &["--size", "'-1' is negative"],
    },
];

/// Runs it and checks code, words, and that it neither panicked nor was ended by a signal.
fn check(said: &Said, code: i32, says: &[&str], what: &str) {
    assert_eq!(said.code, Some(code), "{what}: {}{}", said.out, said.err);
    assert!(!said.err.contains("panicked"), "{what}: {}", said.err);
    for words in says {
        assert!(
            said.err.contains(words),
            "{what}: no {words:?} in: {}",
            said.err
        );
    }
}

#[test]
fn command_lines() {
    let _alone = whole_machine();
    let before = Counters::read(&[]);
    for case in CASES {
        let said = Said::of(siding().args(case.arguments));
        check(
            &said,
            case.code,
            case.says,
            &format!("{:?}", case.arguments),
        );
    }
    assert_eq!(Counters::read(&[]), before);
}

/// A configuration's segment part is completed with storage in `DIR`.
const CONFIGS: &[(&str, i32, &[&str])] = &[
    ("", 2, &["segments"]),
    ("# nothing\n", 2, &["segments"]),
    ("segments: []\n", 2, &["segments"]),
    (
        "segmnets: []\n",
        2,
        &["segmnets", "did you mean", "segments"],
    ),
    (
        "segments: [{name: kv, size: 4Ki, pgae: 4Ki}]\n",
        2,
        &["pgae", "did you mean", "page"],
    ),
    ("segments: [{name: kv, size: 0}]\n", 2, &["size", "0"]),
    ("segments: [{name: kv, size: 1.5}]\n", 2, &["size", "1.5"]),
    (
        "segments: [{name: kv, size: 5Mi, page: 2Mi}]\n",
        2,
        &["size", "4Mi", "6Mi"],
    ),
    ("segments: [{name: a/b, size: 4Ki}]\n", 2, &["name", "a/b"]),
    (
        "segments: [{name: kv, size: 4Ki}, {name: kv, size: 4Ki}]\n",
        2,
        &["name", "kv"],
    ),
    (
        "segments: [{name: kv, size: 1Pi, page: 4Ki}]\nstorage: {directory: DIR}\n",
        3,
        &["segments[kv].size", "1Pi"],
    ),
    (
        "segments: [{name: kv, size: 4Ki}]\nregistration: {cap: 0}\n",
        2,
        &["cap", "0", "unbounded"],
    ),
    (
        "segments: [{name: kv, size: 4Ki}]\nregistration: {cap: -1}\n",
        2,
        &["cap", "-1"],
    ),
    (
        "segments: [{name: kv, size: 4Ki}]\nregistration: {cap: abc}\n",
        2,
        &["cap", "abc"],
    ),
    (
        "segments: [{name: kv, size: 4Ki}]\nregistration: {cap: 8x}\n",
        2,
        &["cap", "8x"],
    ),
    (
        "segments: [{name: kv, size: 4Ki}]\nregistration: {cap: ''}\n",
        2,
        &["cap"],
    ),
    (
        "segments: [{name: kv, size: 4Ki}]\nlisten: {http: nowhere}\n",
        2,
        &["http", "nowhere"],
    ),
    (
        "segments: [{name: kv, size: 4Ki}]\nlogging: {level: 'lud=='}\n",
        2,
        &["logging.level", "lud=="],
    ),
    (
        "segments: [{name: kv, size: 4Ki}]\nstorage: {directory: /proc/nothing}\n",
        3,
        &["storage.directory", "/proc/nothing"],
    ),
    (
        "segments: [{name: kv, size: 4Ki, page: 4Ki, directory: /proc}]\nstorage: {directory: DIR}\n",
        3,
        &["tmpfs", "/proc"],
    ),
];

#[test]
fn configuration_files() {
    let _alone = whole_machine();
    let scratch = scratch();
    let storage = scratch.path().join("storage");
    let file = scratch.path().join("siding.yaml");
    let before = Counters::read(&[&storage]);
    for (text, code, says) in CONFIGS {
        fs::write(&file, text.replace("DIR", &storage.display().to_string())).unwrap();
        let said = Said::of(siding().args(["run", "--config"]).arg(&file));
        check(&said, *code, says, text);
    }
    for (content, says) in [
        (b"segments: [{name: \xff}]".to_vec(), "UTF-8"),
        (vec![b'['; 10_000_000], "larger than 1048576 bytes"),
        (vec![b'['; 1_000_000], "siding.yaml"),
        ("a: ".repeat(300_000).into_bytes(), "siding.yaml"),
        (b"\0\0\0\0".to_vec(), "siding.yaml"),
    ] {
        fs::write(&file, &content).unwrap();
        for command in ["run", "check"] {
            let mut siding = siding();
            match command {
                "run" => siding.args(["run", "--config"]).arg(&file),
                _ => siding.args(["config", "check"]).arg(&file),
            };
            check(
                &Said::of(&mut siding),
                2,
                &[says],
                &String::from_utf8_lossy(&content[..8.min(content.len())]),
            );
        }
    }
    let after = Counters::read(&[&storage]);
    assert_eq!(after.pools, before.pools);
    assert_eq!(after.pinned_pages, before.pinned_pages);
    assert_eq!(after.files, before.files);
}

#[test]
fn a_directory_that_is_not_writable() {
    let scratch = scratch();
    let file = scratch.path().join("siding.yaml");
    let text = "segments: [{name: kv, size: 4Ki}]\nstorage: {directory: /dev/shm/../../proc/sys}\n";
    fs::write(&file, text).unwrap();
    let mut command = siding_tests::siding_as_nobody(scratch.path());
    let said = Said::of(command.args(["run", "--config"]).arg(&file));
    check(
        &said,
        3,
        &["storage.directory", "cannot write", "tmpfs"],
        "nobody in /proc/sys",
    );
}

#[test]
fn caps_from_the_environment_follow_mooncakes_rules() {
    for (value, cap, warns) in [
        ("3", "3", None),
        ("0", "null", Some("unbounded")),
        ("-1", "auto", Some("-1")),
        ("abc", "auto", Some("abc")),
        ("8x", "auto", Some("8x")),
        ("", "auto", Some("MC_MAX_CONCURRENT_REG_MR")),
    ] {
        let mut command = siding();
        command.env("MC_MAX_CONCURRENT_REG_MR", value);
        let said = Said::of(command.args(["mount", "--segment", "kv=1Mi,page=4Ki", "-o", "json"]));
        let registration = said.json()["registration"].clone();
        let reason = registration["capReason"].as_str().unwrap().to_owned();
        match cap {
            "auto" => assert!(reason.starts_with("auto"), "{value:?}: {reason}"),
            _ => assert_eq!(registration["cap"].to_string(), cap, "{value:?}"),
        }
        match warns {
            Some(words) => assert!(said.err.contains(words), "{value:?}: {}", said.err),
            None => assert_eq!(said.err, "", "{value:?}"),
        }
    }
    // What is written out wins.
    let mut command = siding();
    command.env("MC_MAX_CONCURRENT_REG_MR", "0");
    let said = Said::of(command.args([
        "mount",
        "--segment",
        "kv=1Mi,page=4Ki",
        "-o",
        "json",
        "--cap",
        "5",
    ]));
    assert_eq!(said.json()["registration"]["cap"], 5);
    assert_eq!(said.err, "");
}

#[test]
fn schema_and_check_agree_with_what_runs() {
    let said = Said::of(siding().args(["config", "schema"]));
    let schema = said.json();
    for field in ["segments", "registration", "transfer", "listen", "storage"] {
        assert!(schema["properties"][field].is_object(), "{field}");
    }
    let scratch = scratch();
    let file = scratch.path().join("siding.yaml");
    fs::write(&file, "segments: [{name: kv, size: 1.5Gi}]\n").unwrap();
    let check = |path: &Path| Said::of(siding().args(["config", "check"]).arg(path));
    let first = check(&file);
    assert_eq!(first.code, Some(0), "{}", first.err);
    assert!(first.out.contains("1536Mi"), "{}", first.out);
    // What it prints is a configuration with the same meaning.
    fs::write(&file, &first.out).unwrap();
    assert_eq!(check(&file).out, first.out);
}

/// What is quoted from a file steers no terminal and is short, and what would work is still told.
#[test]
fn what_files_say_is_quoted_with_care() {
    let scratch = scratch();
    let file = scratch.path().join("file");
    let long = "9".repeat(1_000_000);
    let key = format!("{{\"{long}\": 1}}");
    for (arguments, text, says) in [
        (
            "bench registration --buffers",
            "1 \u{1b}[31m",
            "is no count; write a whole number",
        ),
        (
            "bench registration --buffers",
            &format!("1 {long}"),
            "is no count; write a whole number",
        ),
        (
            "bench registration --buffers",
            "\u{1b}]0;x\u{7}",
            "line 1: ",
        ),
        (
            "plan --topology",
            r#"{"a\u001b[31m\u009b\u202e": 1}"#,
            "write what `siding topology -o json`",
        ),
        (
            "plan --topology",
            &key,
            "write what `siding topology -o json`",
        ),
        ("config check", "\"\\e[31m\": 1", "[31m"),
        (
            "config check",
            &format!("segments: [{{name: {long}}}]"),
            "name",
        ),
    ] {
        fs::write(&file, text).unwrap();
        let said = Said::of(siding().args(arguments.split(' ')).arg(&file));
        check(&said, 2, &[says], arguments);
        let steers = |letter: char| letter.is_control() && letter != '\n' || letter == '\u{202e}';
        assert!(!said.err.contains(steers), "{arguments}: {:?}", said.err);
        assert!(said.err.len() < 4000, "{arguments}: {}", said.err.len());
    }
}
