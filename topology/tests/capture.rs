//! A capture of a machine, read again.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
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
    let no_archive = "no plain tar archive, as --capture writes it";
    for (bytes, want) in [
        ("root:x:0:0".repeat(200).as_bytes(), no_archive),
        (b"root:x:0:0", no_archive),
        (b"", "empty: no capture"),
        (&[0; 10_240], "holds nothing: no capture"),
        (&[0; 1024], "holds nothing: no capture"),
        (&[0; 512], "cut short: it has no end; capture again"),
        (b"\x1f\x8b\x08", "compressed: unpack it with gunzip first"),
        (
            &[b"\x28\xb5\x2f\xfd", &[1; 2000][..]].concat(),
            "compressed: unpack it with unzstd first",
        ),
    ] {
        fs::write(&file, bytes).unwrap();
        assert_eq!(Root::open(&file).unwrap_err().reason, want);
    }
    let pipe = Root::open("/dev/null").unwrap_err().reason;
    assert_eq!(pipe, "neither a folder nor an archive");
}

/// The archive of a small machine, whose last part is no more than its end.
static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let planted = instances::of("c5n.18xlarge").unwrap().planted();
    captured(&Root::at(planted.path())).1
});

/// Wherever it was cut, be it between two files, it is not taken for whole.
#[test]
fn a_cut_archive_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("cut.tar");
    let whole = &*SMALL;
    fs::write(&file, whole).unwrap();
    assert!(Root::open(&file).is_ok());
    let blocks = (1..whole.len() / 512).map(|block| block * 512);
    for length in blocks.chain([513, 700, whole.len() - 1]) {
        fs::write(&file, &whole[..length]).unwrap();
        let reason = Root::open(&file).unwrap_err().reason;
        assert_eq!(
            reason, "cut short: it has no end; capture again",
            "{length}"
        );
    }
    // Other writers of tar fill up what they write.
    fs::write(&file, [whole, &[0; 8192][..]].concat()).unwrap();
    assert!(Root::open(&file).is_ok());
}

/// An archive with one header of this type and size, and nothing that is written on a disk.
fn with_header(file: &Path, kind: tar::EntryType, size: u64) {
    let mut header = tar::Header::new_gnu();
    header.set_path("sys/x").unwrap();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_cksum();
    let archive = fs::File::create(file).unwrap();
    (&archive).write_all(header.as_bytes()).unwrap();
    archive
        .set_len(512 + size.next_multiple_of(512) + 1024)
        .unwrap();
}

/// Nothing that an archive says of its sizes makes it use memory.
#[test]
fn sizes_are_bounded() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("large.tar");
    for kind in [b'L', b'K', b'x', b'g', b'0', b'5'] {
        with_header(&file, tar::EntryType::new(kind), 3 << 30);
        let reason = Root::open(&file).unwrap_err().reason;
        assert_eq!(reason, "larger than any capture", "{}", char::from(kind));
    }
    for kind in [b'L', b'K', b'x', b'g'] {
        with_header(&file, tar::EntryType::new(kind), 100 << 10);
        let reason = Root::open(&file).unwrap_err().reason;
        assert_eq!(reason, "larger than any capture", "{}", char::from(kind));
    }
    with_header(&file, tar::EntryType::new(b'0'), 17 << 20);
    let reason = Root::open(&file).unwrap().read("sys/x").unwrap_err().reason;
    assert_eq!(reason, "larger than 16 MiB");
    with_header(&file, tar::EntryType::Fifo, 0);
    let reason = Root::open(&file).unwrap().read("sys/x").unwrap_err().reason;
    assert_eq!(reason, "not a regular file");
}

/// Folders that are in no entry of their own take memory, too: here 2000 for each file.
#[test]
fn folders_that_only_paths_name_are_bounded() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("deep.tar");
    let mut archive = tar::Builder::new(fs::File::create(&file).unwrap());
    for index in 0..200 {
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        let path = format!("sys/{index}/{}x", "d/".repeat(1900));
        archive.append_data(&mut header, path, &[][..]).unwrap();
    }
    archive.into_inner().unwrap();
    let reason = Root::open(&file).unwrap_err().reason;
    assert_eq!(reason, "larger than any capture");
}

/// What may be found in the place of a file, a folder or a link.
const ODDITIES: [&str; 9] = [
    "nothing", "folder", "circle", "pipe", "junk", "empty", "large", "dangling", "out",
];

fn replace(path: &Path, how: &str) {
    if path.symlink_metadata().is_err() {
        return;
    }
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
    match how {
        "folder" => fs::create_dir_all(path.join("x")).unwrap(),
        "circle" => symlink(path.file_name().unwrap(), path).unwrap(),
        "pipe" => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        "junk" => fs::write(path, b"\xff\0 1: x\n").unwrap(),
        "empty" => fs::write(path, "").unwrap(),
        "large" => fs::File::create(path)
            .unwrap()
            .set_len((16 << 20) + 1)
            .unwrap(),
        "dangling" => symlink("/nowhere", path).unwrap(),
        "out" => symlink("/etc", path).unwrap(),
        _ => {}
    }
}

/// Every path below a folder, links not followed, in their order.
fn below_folder(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_folder = path.symlink_metadata().unwrap().is_dir();
        paths.push(path.clone());
        if is_folder {
            paths.extend(below_folder(&path));
        }
    }
    paths.sort();
    paths
}

fn small_machine() -> tempfile::TempDir {
    let mut machine = instances::of("p4d.24xlarge").unwrap();
    machine
        .devices
        .retain(|device| device.address.starts_with("0000:10"));
    machine.soft_nics.push(SoftNic {
        port: Port::active("rxe0", "Ethernet", 25),
        parent: "ens5".to_owned(),
    });
    let planted = machine.planted();
    let pods = planted.path().join("sys/fs/cgroup/kubepods.slice");
    fs::create_dir_all(&pods).unwrap();
    fs::write(pods.join("cpuset.cpus.effective"), "0-15\n").unwrap();
    planted
}

/// The node as it is read, and as its capture is, and what the capture of that says.
fn assert_captured_as_read(planted: &Path, what: &str) {
    let (node, archive) = captured(&Root::at(planted));
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("node.tar");
    fs::write(&file, &archive).unwrap();
    let root = Root::open(&file).unwrap();
    let again = below(&file, read_node(&root, &options()));
    assert_eq!(again, below(planted, node), "{what}");
    assert!(
        captured(&root).1 == archive,
        "the capture of a capture: {what}"
    );
}

/// Each path of a machine in turn, with something odd in its place.
#[test]
fn a_capture_tells_the_same_of_what_is_odd() {
    let paths = below_folder(small_machine().path()).len();
    assert!(paths > 100, "{paths}");
    for index in 0..paths {
        let how = ODDITIES[index % ODDITIES.len()];
        let planted = small_machine();
        let path = &below_folder(planted.path())[index];
        replace(path, how);
        assert_captured_as_read(planted.path(), &format!("{how} at {}", path.display()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_capture_tells_the_same_of_several_oddities(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..ODDITIES.len()), 1..6),
    ) {
        let planted = small_machine();
        let paths = below_folder(planted.path());
        let changes: Vec<_> = changes.iter().map(|(at, how)| (at.get(&paths), ODDITIES[*how])).collect();
        for (path, how) in &changes {
            replace(path, how);
        }
        assert_captured_as_read(planted.path(), &format!("{changes:?}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Bytes changed anywhere: a finding or a node, never a panic.
    #[test]
    fn a_damaged_archive_is_survived(
        changes in proptest::collection::vec((0_usize..40_000, any::<u8>()), 1..40),
    ) {
        let mut archive = SMALL.clone();
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
