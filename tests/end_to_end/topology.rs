//! `siding topology`: this machine, one of a fixture, and a capture read again.

use std::fs;

use siding_fixtures::instances;
use siding_tests::{Said, scratch, siding};

fn topology(args: &[&str]) -> Said {
    Said::of(siding().arg("topology").args(args))
}

#[test]
fn this_machine_has_cores() {
    let node = topology(&["-o", "json"]).json();
    assert!(node["cores"]["count"].as_u64().unwrap() > 0, "{node}");
    let table = topology(&[]);
    assert_eq!(table.code, Some(0), "{}", table.err);
    assert!(table.out.contains("\nNUMA nodes:"), "{}", table.out);
}

#[test]
fn a_capture_is_read_as_the_machine_was() {
    let planted = instances::of("p6-b200.48xlarge").unwrap().planted();
    let root = planted.path().to_str().unwrap();
    let scratch = scratch();
    let file = scratch.path().join("node.tar");
    let file = file.to_str().unwrap();
    let live = topology(&["--root", root, "-o", "json", "--capture", file]).json();
    let again = topology(&["--root", file, "-o", "json"]).json();
    assert_eq!(again, live);
    assert_eq!(live["instanceType"], "p6-b200.48xlarge");
    assert_eq!(live["nics"][0]["unusable"], "NvlinkController");
    assert_eq!(live["distances"]["0000:51:00.0"]["rdmap79s0"], "PIX");
    assert_eq!(live["distances"]["0000:51:00.0"]["rdmap133s0"], "SYS");

    let yaml = topology(&["--root", file, "-o", "yaml"]);
    assert!(
        yaml.out.contains("instanceType: p6-b200.48xlarge\n"),
        "{}",
        yaml.out
    );
    let table = topology(&["--root", file, "--instance-type", "x.y"]);
    assert!(
        table
            .out
            .contains("says p6-b200.48xlarge, given was x.y, which is taken"),
        "{}",
        table.out
    );
}

#[test]
fn a_root_that_is_none() {
    let scratch = scratch();
    let file = scratch.path().join("notes.txt");
    fs::write(&file, "not a tar\n".repeat(100)).unwrap();
    for (root, reason) in [
        ("/nowhere", "siding: /nowhere: does not exist"),
        (file.to_str().unwrap(), "no plain tar archive"),
        ("/dev/null", "neither a folder nor an archive"),
    ] {
        let said = topology(&["--root", root]);
        assert_eq!(said.code, Some(2), "{}", said.err);
        assert!(said.err.contains(reason), "{}", said.err);
    }
    let said = topology(&["--capture", "/nowhere/node.tar"]);
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(
        said.err.contains("/nowhere/node.tar: No such file"),
        "{}",
        said.err
    );
}
