//! A capture of a machine, read again.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proptest::prelude::*;
use siding_fixtures::{Machine, Port, SoftNic, instances};
use siding_topology::node::Node;
use siding_topology::{ReadOptions, Root, read_node};

fn options() -> ReadOptions {
    ReadOptions {
        allow_soft_rdma: true,
        ..ReadOptions::default()
    }
}

fn captured(root: &Root) -> (Node, Vec<u8>) {
    let root = root.recording();
    let node = read_node(&root, &options());
    let mut archive = Vec::new();
    root.capture(&mut archive).unwrap();
    (node, archive)
}

/// The node with findings' paths below `base` as if they were below `/`.
fn below(base: &Path, mut node: Node) -> Node {
    for finding in &mut node.findings {
        let inside = finding.path.strip_prefix(base).unwrap();
        finding.path = Path::new("/").join(inside);
    }
    node
}

#[test]
fn every_machine_is_read_again_as_it_was() {
    let scratch = Machine::bare("", "", 1, 1).planted();
    for instance_type in instances::TYPES {
        for absolute_links in [false, true] {
            let mut machine = instances::of(instance_type).unwrap();
            machine.absolute_links = absolute_links;
            machine.soft_nics.push(SoftNic {
                port: Port::active("rxe0", "Ethernet", 25),
                parent: "ens5".to_owned(),
            });
            let planted = machine.planted();
            let (node, archive) = captured(&Root::at(planted.path()));
            let node = below(planted.path(), node);

            let file = scratch.path().join("node.tar");
            fs::write(&file, &archive).unwrap();
            let root = Root::open(&file).unwrap();
            let again = read_node(&root, &options());
            assert_eq!(below(&file, again), node, "{instance_type}");
            assert_eq!(captured(&root).1, archive, "the capture of a capture");

            let unpacked = scratch
                .path()
                .join(format!("{instance_type}{absolute_links}"));
            tar::Archive::new(&archive[..]).unpack(&unpacked).unwrap();
            let again = read_node(&Root::open(&unpacked).unwrap(), &options());
            assert_eq!(below(&unpacked, again), node, "{instance_type}");
        }
    }
}

#[test]
fn nothing_but_what_was_read_is_in_it() {
    let planted = instances::of("c5n.18xlarge").unwrap().planted();
    let root = Root::at(planted.path());
    for secret in [
        "proc/self/environ",
        "sys/devices/virtual/dmi/id/product_uuid",
    ] {
        fs::write(root.path(secret), "secret\n").unwrap();
    }
    let mounts = fs::read_to_string(root.path("proc/self/mountinfo")).unwrap();
    let mounts = format!("{mounts}40 22 0:9 / /s rw - cifs //h/s rw,username=secret\n");
    fs::write(root.path("proc/self/mountinfo"), mounts).unwrap();
    let (_, archive) = captured(&root);
    let mut files = Vec::new();
    for entry in tar::Archive::new(&archive[..]).entries().unwrap() {
        let entry = entry.unwrap();
        if entry.header().entry_type().is_file() {
            files.push(entry.path().unwrap().into_owned());
        }
    }
    let text = String::from_utf8_lossy(&archive);
    assert!(!text.contains("secret"), "{files:?}");
    assert!(files.contains(&PathBuf::from("proc/self/mountinfo")));
    assert!(files.contains(&PathBuf::from("sys/devices/virtual/dmi/id/sys_vendor")));
}

/// A name that was listed and not opened is no file that is missing.
#[test]
fn what_was_only_listed_is_told_apart() {
    let planted = tempfile::tempdir().unwrap();
    fs::create_dir(planted.path().join("d")).unwrap();
    fs::write(planted.path().join("d/a"), "1\n").unwrap();
    fs::write(planted.path().join("d/b"), "2\n").unwrap();
    let root = Root::at(planted.path()).recording();
    assert_eq!(root.list("d").unwrap(), ["a", "b"]);
    assert_eq!(root.read("d/b").unwrap(), "2\n");
    let file = planted.path().join("c.tar");
    root.capture(fs::File::create(&file).unwrap()).unwrap();
    let again = Root::open(&file).unwrap();
    assert_eq!(again.list("d").unwrap(), ["a", "b"]);
    assert_eq!(again.read("d/b").unwrap(), "2\n");
    assert_eq!(
        again.read("d/a").unwrap_err().reason,
        "was listed and not opened when this was captured"
    );
    assert_eq!(again.read("d/c").unwrap_err().reason, "does not exist");
    assert_eq!(again.read("d").unwrap_err().reason, "not a regular file");
    assert!(again.is_dir("d") && !again.is_dir("d/b"));
}

#[test]
fn what_is_no_archive() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    let missing = Root::open(&file).unwrap_err();
    assert_eq!(
        (missing.path, missing.reason.as_str()),
        (file.clone(), "does not exist")
    );
    fs::write(&file, "x".repeat(2000)).unwrap();
    let reason = Root::open(&file).unwrap_err().reason;
    assert!(reason.starts_with("no plain tar archive: "), "{reason}");
    let pipe = Root::open("/dev/null").unwrap_err().reason;
    assert_eq!(pipe, "neither a folder nor an archive");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Bytes changed anywhere: a finding or a node, never a panic.
    #[test]
    fn a_damaged_archive_is_survived(
        changes in proptest::collection::vec((0_usize..40_000, any::<u8>()), 1..40),
    ) {
        static ARCHIVE: LazyLock<Vec<u8>> = LazyLock::new(|| {
            let planted = instances::of("c5n.18xlarge").unwrap().planted();
            captured(&Root::at(planted.path())).1
        });
        let mut archive = ARCHIVE.clone();
        for (at, byte) in changes {
            let at = at % archive.len();
            archive[at] = byte;
        }
        let scratch = tempfile::tempdir()?;
        let file = scratch.path().join("damaged.tar");
        fs::write(&file, archive)?;
        if let Ok(root) = Root::open(&file) {
            let _ = read_node(&root, &options());
        }
    }
}
