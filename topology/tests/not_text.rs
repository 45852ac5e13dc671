//! Names that are not UTF-8: all that has one is told, and nothing else is taken for it.

#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use siding_fixtures::instances;
use siding_topology::node::Node;
use siding_topology::{ReadOptions, Root, read_node};
use tempfile::TempDir;

const NIC: &str = "rdmap16s27";
const HOME: &str = "sys/devices/pci0000:10";

/// A p4d with its first NIC in a folder without a text for a name, and another NIC whose own name
/// is none.
fn planted() -> TempDir {
    let mut machine = instances::of("p4d.24xlarge").unwrap();
    machine.absolute_links = true;
    let planted = machine.planted();
    let below = Path::new(HOME).join(OsStr::from_bytes(b"\xff"));
    let (from, to) = (
        Path::new(HOME).join("0000:10:1b.0"),
        below.join("0000:10:1b.0"),
    );
    fs::create_dir(planted.path().join(&below)).unwrap();
    fs::rename(planted.path().join(&from), planted.path().join(&to)).unwrap();
    let (from, to) = (Path::new("/").join(from), Path::new("/").join(to));
    redirect(planted.path(), &from, &to);
    let nameless = planted.path().join("sys/class/infiniband");
    symlink(&to, nameless.join(OsStr::from_bytes(b"nic\xfe"))).unwrap();
    planted
}

/// Lets all links that lead below one folder lead below another.
fn redirect(folder: &Path, from: &Path, to: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.symlink_metadata().unwrap().is_dir() {
            redirect(&path, from, to);
        } else if let Ok(target) = fs::read_link(&path)
            && let Ok(rest) = target.strip_prefix(from)
        {
            fs::remove_file(&path).unwrap();
            let target: PathBuf = to.components().chain(rest.components()).collect();
            symlink(target, path).unwrap();
        }
    }
}

fn read(root: &Root) -> Node {
    read_node(root, &ReadOptions::default())
}

#[test]
fn a_folder_without_a_text_for_a_name_is_still_walked() {
    let planted = planted();
    let was = read(&Root::at(
        instances::of("p4d.24xlarge").unwrap().planted().path(),
    ));
    let node = read(&Root::at(planted.path()));
    let place = |node: &Node| {
        let nics = node.known_nics().iter();
        let mut named = nics.filter(|nic| nic.name == NIC);
        named.next().and_then(|nic| nic.place.clone()).unwrap()
    };
    assert_eq!(place(&node), place(&was));
    let ids: Vec<_> = node.known_nics().iter().map(|nic| nic.ids).collect();
    assert_eq!(ids, [Some((0x1d0f, 0xefa0)); 4]);
    let said: Vec<&str> = node
        .findings
        .iter()
        .map(|one| one.reason.as_str())
        .collect();
    assert_eq!(said, ["its name is no text (UTF-8): left out"]);
}

/// For people and for machines, live and replayed.
#[test]
fn what_is_found_is_told() {
    let planted = planted();
    let odd = planted.path().join(OsStr::from_bytes(b"r\xff"));
    fs::create_dir(&odd).unwrap();
    for part in ["sys", "proc"] {
        fs::rename(planted.path().join(part), odd.join(part)).unwrap();
    }
    let root = Root::at(&odd).recording();
    let node = read(&root);
    let json = serde_json::to_value(&node).unwrap();
    let path = json["findings"][0]["path"].as_str().unwrap();
    assert!(
        path.ends_with("/r\u{fffd}/sys/class/infiniband/nic\u{fffd}"),
        "{path}"
    );
    assert!(serde_json::from_value::<Node>(json).is_ok());

    let file = planted.path().join("node.tar");
    root.capture(fs::File::create(&file).unwrap()).unwrap();
    let again = read(&Root::open(&file).unwrap());
    assert_eq!((&again.nics, &again.gpus), (&node.nics, &node.gpus));
    let said = |node: &Node, base: &Path| -> Vec<(PathBuf, String)> {
        let findings = node.findings.iter();
        let below = |path: &Path| path.strip_prefix(base).unwrap().to_owned();
        findings
            .map(|one| (below(&one.path), one.reason.clone()))
            .collect()
    };
    assert_eq!(said(&again, &file), said(&node, &odd));
}

/// What was read of such a mount point is another path, which is not looked at.
#[test]
fn no_other_mount_point_is_looked_at() {
    let planted = instances::of("p4d.24xlarge").unwrap().planted();
    let wrong = planted.path().join("cg\u{fffd}/kubepods");
    fs::create_dir_all(&wrong).unwrap();
    fs::write(wrong.join("cpuset.cpus.effective"), "0-1\n").unwrap();
    let mounts = b"30 1 0:26 / /cg\xff rw - cgroup2 c rw\n31 1 0:27 / /m\xff rw - ext4 c rw\n";
    fs::write(planted.path().join("proc/self/mountinfo"), mounts).unwrap();
    let node = read(&Root::at(planted.path()));
    assert_eq!(node.cores.unwrap().count.get(), 96);
    let said: Vec<&str> = node
        .findings
        .iter()
        .map(|one| one.reason.as_str())
        .collect();
    assert_eq!(
        said,
        ["a cgroup2 is mounted on what is no text (UTF-8): left out"]
    );
}
