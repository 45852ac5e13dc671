//! `siding topology`: this machine, one of a fixture, and a capture read again.

use std::fs;
use std::process::Command;

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
    let unknown =
        "\n  --instance-type: nothing is published of x.y: only what the tree shows is known";
    assert!(table.out.contains(unknown), "{}", table.out);
}

#[test]
fn a_root_that_is_none() {
    let scratch = scratch();
    let file = scratch.path().join("notes.txt");
    fs::write(&file, "not a tar\n".repeat(100)).unwrap();
    let empty = scratch.path().join("empty.tar");
    fs::write(&empty, "").unwrap();
    for (root, reason) in [
        ("/nowhere", "siding: --root: /nowhere: does not exist"),
        (
            file.to_str().unwrap(),
            "no plain tar archive, as --capture writes it",
        ),
        (
            "/etc/passwd",
            "siding: --root: /etc/passwd: no plain tar archive, as --capture writes it\n",
        ),
        (empty.to_str().unwrap(), "empty: no capture"),
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

/// A file that can't be written whole stays as it was, and nothing is left beside it.
#[test]
fn a_file_is_written_whole_or_not_at_all() {
    for arguments in ["topology --capture", "simulate --svg"] {
        let scratch = scratch();
        let file = scratch.path().join("file");
        fs::write(&file, "old").unwrap();
        let script = format!("ulimit -f 1; exec \"$0\" {arguments} \"$1\"");
        let mut limited = Command::new("sh");
        limited
            .args(["-c", &script])
            .arg(siding_tests::binary())
            .arg(&file);
        let said = Said::of(&mut limited);
        assert_eq!(said.code, Some(1), "{arguments}: {}", said.err);
        assert!(said.err.contains("File too large"), "{}", said.err);
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1);
    }
}

#[test]
fn a_type_that_is_none() {
    for name in ["", " ", "\u{1b}[31mred"] {
        let said = topology(&["--instance-type", name]);
        assert_eq!(said.code, Some(2), "{}", said.err);
        let want = format!("siding: --instance-type: {name:?} is no type's name; write 1 to 63");
        assert!(said.err.starts_with(&want), "{}", said.err);
    }
}

/// What can't be listed is unknown in every form, and to the planner.
#[test]
fn unlisted_devices() {
    let planted = instances::of("p4d.24xlarge").unwrap().planted();
    let devices = planted.path().join("sys/bus/pci/devices");
    fs::remove_dir_all(&devices).unwrap();
    fs::write(&devices, "").unwrap();
    let root = planted.path().to_str().unwrap();
    let table = topology(&["--root", root]).out;
    assert!(table.contains("\nGPUs: unknown\n"), "{table}");
    let words = "devices: not a folder: how many GPUs there are is unknown\n";
    assert!(table.contains(words), "{table}");
    for form in ["json", "yaml"] {
        let printed = topology(&["--root", root, "-o", form]).out;
        let file = planted.path().join("node");
        fs::write(&file, &printed).unwrap();
        let plan = ["plan", "-o", "json", "--topology", file.to_str().unwrap()];
        let plan = Said::of(siding().args(plan)).json();
        assert_eq!(plan["capRule"], "UnknownRanks", "{plan}");
        assert!(
            plan["cap"].is_null() && plan["inputs"]["gpus"].is_null(),
            "{plan}"
        );
    }
}

/// What was typed wrong in a node's description is named.
#[test]
fn a_node_that_can_not_be() {
    let planted = instances::of("p4d.24xlarge").unwrap().planted();
    let node = topology(&["--root", planted.path().to_str().unwrap(), "-o", "json"]);
    let file = planted.path().join("node.json");
    for (from, to, want) in [
        (
            "rateGbps\": 100",
            "rateGbps\": 0",
            "rateGbps: 0 is no rate; write whole Gbit/s",
        ),
        (
            "rateGbps",
            "rateGbit",
            "unknown field `rateGbit`, expected one of",
        ),
        (
            "\"address\": \"0000:10:1d.0",
            "\"address\": \"0000:10:1c.0",
            "gpus: place.address: two",
        ),
    ] {
        assert!(node.out.contains(from), "{from}");
        fs::write(&file, node.out.replace(from, to)).unwrap();
        let said = Said::of(siding().args(["plan", "--topology"]).arg(&file));
        assert_eq!(said.code, Some(2), "{}", said.err);
        assert!(said.err.contains(want), "{}", said.err);
    }
}
