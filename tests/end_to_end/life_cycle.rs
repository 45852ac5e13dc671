//! `siding run`: what stays, what goes, over SIGTERM, SIGKILL and restart.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use siding_fabric::{MapRequest, Mapping, Pages, Placement, Source};
use siding_tests::kernel::{Counters, Hugetlbfs, huge_pages, pool_2mi};
use siding_tests::{Said, Server, scratch, siding, whole_machine};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A sidecar with its storage and configuration in scratch directories.
struct Sidecar {
    scratch: TempDir,
    segments: String,
    more: String,
}

impl Sidecar {
    fn new(segments: &str) -> Self {
        Self {
            scratch: scratch(),
            segments: segments.to_owned(),
            more: String::new(),
        }
    }

    fn storage(&self) -> PathBuf {
        self.scratch.path().join("storage")
    }

    fn command(&self) -> std::process::Command {
        let config = self.scratch.path().join("siding.yaml");
        let text = format!(
            "segments: [{}]\nstorage: {{directory: {}}}\nlisten: {{http: '127.0.0.1:0'}}\n{}",
            self.segments,
            self.storage().display(),
            self.more
        );
        fs::write(&config, text).unwrap();
        let mut command = siding();
        command.args(["run", "--config"]).arg(config);
        command
    }

    fn start(&self) -> Server {
        Server::start(&mut self.command())
    }

    /// Where root's files are.
    fn store(&self) -> PathBuf {
        self.storage().join("siding-0")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.store().join(format!("siding-{name}.segment"))
    }

    fn header(&self) -> PathBuf {
        self.store().join("siding-kv.header.json")
    }
}

fn first(status: &Value) -> &Value {
    &status["segments"][0]
}

/// Writes a mark where a reader of another process looks for it.
fn write(path: &Path, pages: Pages, offset: u64, bytes: &[u8]) {
    assert!(map(path, pages).write(offset, bytes));
}

fn read(path: &Path, pages: Pages, offset: u64, length: usize) -> Vec<u8> {
    let mut content = vec![0; length];
    assert!(map(path, pages).read(offset, &mut content));
    content
}

fn map(path: &Path, pages: Pages) -> Mapping {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let len_bytes = file.metadata().unwrap().len();
    let source = Source::File(file);
    Mapping::new(MapRequest {
        len_bytes,
        pages,
        placement: Placement::Any,
        source,
    })
    .unwrap()
}

#[test]
fn after_a_kill_the_segment_is_found_and_its_content_is_there() {
    let _alone = whole_machine();
    let sidecar = Sidecar::new("{name: kv, size: 64Mi, page: 4Ki}");
    let mut server = sidecar.start();
    let status = server.ready();
    assert_eq!(first(&status)["content"], "fresh");
    let identity = first(&status)["identity"].clone();
    assert_eq!(first(&status)["generation"], 1);
    let file = sidecar.file("kv");
    write(&file, Pages::Base, 40 * MIB + 5, b"an object");
    let inode = fs::metadata(&file).unwrap().ino();
    server.end(Signal::KILL);

    let mut server = sidecar.start();
    let status = server.ready();
    assert_eq!(first(&status)["content"], "kept");
    assert_eq!(first(&status)["identity"], identity);
    assert_eq!(first(&status)["generation"], 1);
    assert!(first(&status)["seconds"]["touch"].is_null());
    assert_eq!(first(&status)["registeredBytes"], 64 * MIB);
    assert_eq!(fs::metadata(&file).unwrap().ino(), inode);
    assert_eq!(read(&file, Pages::Base, 40 * MIB + 5, 9), b"an object");

    // A good end keeps it too.
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
    assert_eq!(first(&sidecar.start().ready())["content"], "kept");
}

#[test]
fn huge_pages_are_kept_as_well_and_no_page_is_needed_twice() {
    let _alone = whole_machine();
    let _pages = huge_pages(16);
    let mount = Hugetlbfs::mount();
    let directory = mount.path().display();
    let sidecar = Sidecar::new(&format!(
        "{{name: kv, size: 32Mi, page: 2Mi, directory: {directory}}}"
    ));
    let mut server = sidecar.start();
    assert_eq!(first(&server.ready())["page"], "2Mi");
    let file = mount.path().join("siding-kv.segment");
    write(&file, Pages::Huge(2 * MIB), 31 * MIB, b"huge");
    server.end(Signal::KILL);
    assert_eq!(pool_2mi()[1], 0, "the file holds every page of the pool");

    let mut server = sidecar.start();
    let status = server.ready();
    assert_eq!(
        (&first(&status)["content"], &first(&status)["page"]),
        (&"kept".into(), &"2Mi".into())
    );
    assert_eq!(read(&file, Pages::Huge(2 * MIB), 31 * MIB, 4), b"huge");
    server.end(Signal::KILL);

    // Another size: the old file goes first, so that its pages can be had again.
    let sidecar = Sidecar {
        segments: format!("{{name: kv, size: 30Mi, page: 2Mi, directory: {directory}}}"),
        ..sidecar
    };
    let mut server = sidecar.start();
    let status = server.ready();
    assert_eq!(first(&status)["content"], "fresh");
    assert_eq!(first(&status)["generation"], 2);
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
}

/// What does not pass is unlinked and made anew, with a new identity.
#[test]
fn half_made_foreign_and_damaged_files_do_not_pass() {
    let _alone = whole_machine();
    type Harm = fn(&Sidecar);
    let harms: [(&str, Harm, &str); 7] = [
        (
            "no header",
            |s| fs::remove_file(s.header()).unwrap(),
            "half-made",
        ),
        (
            "damaged header",
            |s| fs::write(s.header(), "{").unwrap(),
            "damaged",
        ),
        (
            "huge header",
            |s| fs::write(s.header(), vec![b' '; 100_000]).unwrap(),
            "100000 bytes",
        ),
        (
            "version of the future",
            |s| {
                let path = s.header();
                let text = fs::read_to_string(&path)
                    .unwrap()
                    .replace("\"version\": 1", "\"version\": 2");
                fs::write(path, text).unwrap();
            },
            "version is 2",
        ),
        (
            "truncated",
            |s| {
                File::options()
                    .write(true)
                    .open(s.file("kv"))
                    .unwrap()
                    .set_len(MIB)
                    .unwrap()
            },
            "length",
        ),
        (
            "another file",
            |s| {
                let content = fs::read(s.file("kv")).unwrap();
                fs::remove_file(s.file("kv")).unwrap();
                let hold = File::create(s.store().join("takes-the-inode")).unwrap();
                fs::write(s.file("kv"), content).unwrap();
                drop(hold);
            },
            "another file",
        ),
        (
            "a hole",
            |s| {
                let file = File::options().write(true).open(s.file("kv")).unwrap();
                file.set_len(4 * MIB).unwrap();
                file.set_len(8 * MIB).unwrap();
            },
            "pages behind them",
        ),
    ];
    for (what, harm, says) in harms {
        let sidecar = Sidecar::new("{name: kv, size: 8Mi, page: 4Ki}");
        let mut server = sidecar.start();
        let identity = first(&server.ready())["identity"].clone();
        let file = File::options()
            .write(true)
            .open(sidecar.file("kv"))
            .unwrap();
        file.write_all_at(b"old", 0).unwrap();
        server.end(Signal::KILL);
        harm(&sidecar);

        let mut command = sidecar.command();
        let server = Server::start(&mut command);
        let status = server.ready();
        assert_eq!(first(&status)["content"], "fresh", "{what}");
        // Without a header that can be read nobody knows the last one.
        let unreadable = ["no header", "damaged header", "huge header"].contains(&what);
        let generation = if unreadable { 1 } else { 2 };
        assert_eq!(first(&status)["generation"], generation, "{what}");
        assert_ne!(first(&status)["identity"], identity, "{what}");
        assert_eq!(
            read(&sidecar.file("kv"), Pages::Base, 0, 3),
            [0; 3],
            "{what}"
        );
        drop(server);
        // The reason was logged: a third start with the same harm says it before it serves.
        harm(&sidecar);
        let mut command = sidecar.command();
        let mut server = Server::start_silently(&mut command);
        let line = server.logged("removed what an earlier process left");
        assert!(line.contains(says), "{what}: {line}");
        server.end(Signal::KILL);
    }
}

#[test]
fn sigterm_in_the_middle_of_touching_ends_well_and_leaves_nothing_half_made() {
    let _alone = whole_machine();
    let mut sidecar = Sidecar::new("{name: kv, size: 6Gi, page: 4Ki}");
    sidecar.more =
        "registration: {touchThreads: 1, backend: none}\nshutdown: {graceSeconds: 10}\n".to_owned();
    let before = Counters::read(&[]);
    let mut server = sidecar.start();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let status: Value = serde_json::from_str(&server.until("/v1/status", 200)).unwrap();
        let touched = first(&status)["touchedBytes"].as_u64().unwrap();
        assert!(touched < 6 << 30, "touched before it could be stopped");
        if touched > 0 {
            break;
        }
        assert!(Instant::now() < deadline);
    }
    assert!(
        server.until("/startupz", 503).contains("kv"),
        "it says what it waits for"
    );
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
    assert!(!sidecar.file("kv").exists() && !sidecar.file("kv").with_extension("draft").exists());
    assert_eq!(Counters::read(&[]), before);
}

#[test]
fn two_sidecars_on_one_directory() {
    let _alone = whole_machine();
    let sidecar = Sidecar::new("{name: kv, size: 1Mi, page: 4Ki}");
    let server = sidecar.start();
    let _ = server.ready();
    let said = Said::of(&mut sidecar.command());
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(said.err.contains("another siding uses"), "{}", said.err);
    let _ = server.until("/readyz", 200);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let _alone = whole_machine();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let said = Said::of(siding().args([
        "mount",
        "--segment",
        "kv=4Ki",
        "--serve",
        "--listen",
        &address.to_string(),
    ]));
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(
        said.err.contains(&format!("listen.http: {address}")),
        "{}",
        said.err
    );
}

#[test]
fn logs_are_json_in_a_pod() {
    let _alone = whole_machine();
    let sidecar = Sidecar::new("{name: kv, size: 1Mi, page: 4Ki}");
    let mut command = sidecar.command();
    let server = Server::start(command.env("KUBERNETES_SERVICE_HOST", "10.0.0.1"));
    let line: Value = serde_json::from_str(&server.logged("mounted")).unwrap();
    assert_eq!(
        (&line["segment"], &line["page"], &line["level"]),
        (&"kv".into(), &"4Ki".into(), &"INFO".into())
    );
}

/// Whoever is given another storage directory still meets the same hugetlbfs.
#[test]
fn a_file_in_use_is_never_taken_away() {
    let _alone = whole_machine();
    let _pages = huge_pages(8);
    let mount = Hugetlbfs::mount();
    let directory = mount.path().display();
    let one = Sidecar::new(&format!(
        "{{name: kv, size: 8Mi, page: 2Mi, directory: {directory}}}"
    ));
    let other = Sidecar::new(&format!(
        "{{name: kv, size: 4Mi, page: 2Mi, directory: {directory}}}"
    ));
    let mut server = one.start();
    let _ = server.ready();
    let file = mount.path().join("siding-kv.segment");
    write(&file, Pages::Huge(2 * MIB), 7 * MIB, b"mine");
    let said = Said::of(&mut other.command());
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(
        said.err.contains("another siding uses") && said.err.contains("siding-kv.segment"),
        "{}",
        said.err
    );
    assert_eq!(read(&file, Pages::Huge(2 * MIB), 7 * MIB, 4), b"mine");

    // Nor is one at rest: without a header in its own store nobody knows what it is.
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
    let said = Said::of(&mut other.command());
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(
        said.err.contains("was made with another storage.directory"),
        "{}",
        said.err
    );
    let status = one.start().ready();
    assert_eq!(first(&status)["content"], "kept");
    assert_eq!(read(&file, Pages::Huge(2 * MIB), 7 * MIB, 4), b"mine");
}

/// Killed while touching, with no page to spare: what is half-made holds every page of the pool.
#[test]
fn half_made_on_a_pool_of_exactly_its_size_starts_again() {
    let _alone = whole_machine();
    let _pages = huge_pages(1024);
    let mount = Hugetlbfs::mount();
    let directory = mount.path().display();
    let sidecar = Sidecar::new(&format!(
        "{{name: kv, size: 2Gi, page: 2Mi, directory: {directory}}}"
    ));
    for delay_ms in [5, 15, 30] {
        let mut server = Server::start_silently(&mut sidecar.command());
        let _ = server.logged("mounting on pages");
        std::thread::sleep(Duration::from_millis(delay_ms));
        server.end(Signal::KILL);
    }
    let mut server = sidecar.start();
    assert_eq!(first(&server.ready())["state"], "ready");
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
    assert!(!mount.path().join("siding-kv.draft").exists());
}

#[test]
fn a_configuration_that_cannot_work_leaves_the_content_alone() {
    let _alone = whole_machine();
    let sidecar = Sidecar::new("{name: kv, size: 8Mi, page: 4Ki}");
    let mut server = sidecar.start();
    let identity = first(&server.ready())["identity"].clone();
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
    let wrong = Sidecar {
        segments: "{name: kv, size: 8Pi, page: 4Ki}".to_owned(),
        ..sidecar
    };
    assert_eq!(Said::of(&mut wrong.command()).code, Some(3));
    let right = Sidecar {
        segments: "{name: kv, size: 8Mi, page: 4Ki}".to_owned(),
        ..wrong
    };
    let server = right.start();
    let status = server.ready();
    assert_eq!(
        (&first(&status)["content"], &first(&status)["identity"]),
        (&"kept".into(), &identity)
    );
}

#[test]
fn a_segment_that_is_no_longer_declared_is_told_with_what_removes_it() {
    let _alone = whole_machine();
    let sidecar = Sidecar::new("{name: old, size: 4Mi, page: 4Ki}");
    let mut server = sidecar.start();
    let _ = server.ready();
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
    let renamed = Sidecar {
        segments: "{name: new, size: 4Mi, page: 4Ki}".to_owned(),
        ..sidecar
    };
    let server = Server::start_silently(&mut renamed.command());
    let line = server.logged("a segment that is not declared any more");
    assert!(
        line.contains("4194304") && line.contains("siding-old.segment"),
        "{line}"
    );
}

/// Others who may write next to it must not lead root astray.
#[test]
fn a_store_that_others_may_change_is_refused() {
    let _alone = whole_machine();
    let sidecar = Sidecar::new("{name: kv, size: 1Mi, page: 4Ki}");
    fs::create_dir_all(sidecar.store()).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(sidecar.store(), open).unwrap();
    let said = Said::of(&mut sidecar.command());
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(
        said.err
            .contains("with mode 777, so that others may change what is in it"),
        "{}",
        said.err
    );
}

#[test]
fn a_header_that_names_another_file_gets_neither_read_nor_removed() {
    let _alone = whole_machine();
    let sidecar = Sidecar::new("{name: kv, size: 1Mi, page: 4Ki}");
    let mut server = sidecar.start();
    let _ = server.ready();
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
    let secret = sidecar.scratch.path().join("secret");
    fs::write(&secret, vec![7; 1 << 20]).unwrap();
    let header = fs::read_to_string(sidecar.header()).unwrap();
    let found = fs::metadata(&secret).unwrap();
    let mut forged: Value = serde_json::from_str(&header).unwrap();
    forged["file"] = secret.display().to_string().into();
    forged["inode"] = found.ino().into();
    forged["device"] = found.dev().into();
    fs::write(sidecar.header(), forged.to_string()).unwrap();
    let server = sidecar.start();
    let status = server.ready();
    assert_eq!(first(&status)["content"], "fresh");
    assert_eq!(
        first(&status)["file"],
        sidecar.file("kv").display().to_string()
    );
    assert_eq!(fs::read(&secret).unwrap(), vec![7; 1 << 20]);
}
