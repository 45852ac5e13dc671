//! `siding mount`: real pages, really pinned, and undone.

use rustix::process::Signal;
use serde_json::Value;
use siding_tests::kernel::{Counters, huge_pages, is_root, pool_2mi};
use siding_tests::{Said, Server, eventually, scratch, siding, siding_as_nobody, whole_machine};

const MIB: u64 = 1 << 20;

fn mount(segments: &[&str], more: &[&str]) -> Said {
    let mut command = siding();
    command.args(["mount", "-o", "json"]);
    for segment in segments {
        command.args(["--segment", segment]);
    }
    Said::of(command.args(more))
}

fn segment<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = report["segments"].as_array().unwrap();
    all.iter().find(|segment| segment["name"] == name).unwrap()
}

#[test]
fn base_pages_are_mapped_registered_pinned_and_given_back() {
    let _alone = whole_machine();
    assert!(is_root(), "pinning more than RLIMIT_MEMLOCK needs root");
    let before = Counters::read(&[]);
    let report = mount(&["kv=24Mi,page=4Ki", "index=8Mi,page=4Ki"], &[]).json();
    let kv = segment(&report, "kv");
    assert_eq!(kv["page"], "4Ki");
    assert_eq!(kv["registeredBytes"], 24 * MIB);
    assert_eq!(kv["state"], "ready");
    assert_eq!(kv["content"], "fresh");
    assert!(kv["seconds"]["register"].as_f64().unwrap() > 0.0);
    assert!(
        kv["seconds"]["touch"].is_null(),
        "a small segment is touched by registering"
    );
    assert_eq!(report["pinnedBytes"], 32 * MIB);
    assert_eq!(report["registration"]["backend"], "io_uring");
    assert_eq!(report["state"], "ready");
    assert_eq!(Counters::read(&[]), before);
}

#[test]
fn a_larger_segment_is_touched_first() {
    let _alone = whole_machine();
    let report = mount(&["kv=1Gi,page=4Ki"], &[]).json();
    let kv = segment(&report, "kv");
    assert_eq!(kv["touchedBytes"], 1024 * MIB);
    let seconds = |phase: &str| kv["seconds"][phase].as_f64().unwrap();
    assert!(
        seconds("touch") > seconds("register"),
        "touching costs more than pinning touched pages"
    );
    assert_eq!(report["pinnedBytes"], 1024 * MIB);
}

#[test]
fn reserved_huge_pages_are_used_and_given_back() {
    let _alone = whole_machine();
    let before = Counters::read(&[]);
    let report = mount(&["kv=64Mi,page=2Mi", "index=4Mi,page=2Mi"], &["--reserve"]).json();
    assert_eq!(segment(&report, "kv")["page"], "2Mi");
    assert_eq!(report["reservedPages"]["2097152"], 34);
    assert_eq!(report["pinnedBytes"], 68 * MIB);
    assert_eq!(Counters::read(&[]), before);
}

#[test]
fn a_reservation_that_falls_short_is_reported_with_numbers_and_undone() {
    let _alone = whole_machine();
    let before = Counters::read(&[]);
    let said = mount(&["kv=4Ti,page=2Mi"], &["--reserve"]);
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(
        said.err
            .contains("asked for 2097152 more pages of 2Mi, the kernel granted "),
        "{}",
        said.err
    );
    assert_eq!(Counters::read(&[]), before);
}

#[test]
fn auto_takes_the_largest_pages_that_are_free_and_says_why() {
    let _alone = whole_machine();
    let _pages = huge_pages(32);
    let report = mount(&["big=64Mi", "more=2Mi", "odd=12Ki"], &[]).json();
    let page = |name| segment(&report, name)["page"].as_str().unwrap().to_owned();
    assert_eq!(page("big"), "2Mi");
    assert_ne!(page("more"), "2Mi", "all 32 pages are taken by the first");
    assert_ne!(page("odd"), "2Mi");
    let why = |name| {
        segment(&report, name)["pageReason"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(
        why("more").contains("2Mi: 1 free pages of 2Mi are needed, 0 are there"),
        "{}",
        why("more")
    );
    assert!(
        why("odd").contains("2Mi: 12Ki is not a multiple of 2Mi"),
        "{}",
        why("odd")
    );
}

#[test]
fn an_explicit_page_size_that_is_not_free_is_refused_with_the_command_that_mends_it() {
    let _alone = whole_machine();
    let _pages = huge_pages(5);
    let said = mount(&["kv=16Mi,page=2Mi"], &[]);
    assert_eq!(said.code, Some(3));
    for words in [
        "8 free pages of 2Mi are needed, 5 are there",
        "echo 8 | sudo tee /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
    ] {
        assert!(said.err.contains(words), "{}", said.err);
    }
}

#[test]
fn an_ordinary_user_gets_the_table_and_is_told_what_was_left_out() {
    let _alone = whole_machine();
    let scratch = scratch();
    let said = Said::of(siding_as_nobody(scratch.path()).args([
        "mount",
        "--segment",
        "kv=64Mi,page=4Ki",
        "-o",
        "json",
    ]));
    let report = said.json();
    let kv = segment(&report, "kv");
    // io_uring's own rings count too, a few pages of them.
    let registered = kv["registeredBytes"].as_u64().unwrap();
    assert!(
        (8 * MIB - 262_144..=8 * MIB).contains(&registered),
        "{registered}"
    );
    assert_eq!(report["pinnedBytes"], registered);
    assert_eq!(
        kv["touchedBytes"],
        64 * MIB,
        "the rest is touched all the same"
    );
    let left_out = kv["leftOut"].as_str().unwrap();
    assert!(
        left_out.contains("not registered: RLIMIT_MEMLOCK allows this user 8Mi over all"),
        "{left_out}"
    );

    let table = Said::of(siding_as_nobody(scratch.path()).args(["mount", "--segment", "kv=64Mi"]));
    assert_eq!(table.code, Some(0), "{}", table.err);
    assert!(table.out.contains("kv: LEFT OUT: "), "{}", table.out);

    let said = Said::of(siding_as_nobody(scratch.path()).args([
        "mount",
        "--segment",
        "kv=64Mi,page=4Ki",
        "--backend",
        "io_uring",
    ]));
    assert_eq!(said.code, Some(3));
    assert!(
        said.err
            .contains("64Mi are to be pinned, RLIMIT_MEMLOCK allows this user 8Mi"),
        "{}",
        said.err
    );

    let said = Said::of(siding_as_nobody(scratch.path()).args([
        "mount",
        "--segment",
        "kv=64Mi",
        "--reserve",
        "-o",
        "json",
    ]));
    let report = said.json();
    assert!(
        report["notes"][0].as_str().unwrap().contains("run as root"),
        "{report}"
    );
}

#[test]
fn without_io_uring_there_is_none_with_the_reason_and_memory_is_touched() {
    let _alone = whole_machine();
    let _knob = siding_tests::kernel::Knob::set("/proc/sys/kernel/io_uring_disabled", "2");
    let report = mount(&["kv=8Mi,page=4Ki"], &[]).json();
    assert_eq!(report["registration"]["backend"], "none");
    let reason = report["registration"]["reason"].as_str().unwrap();
    assert!(
        reason.contains("io_uring is forbidden here") && reason.contains("TCP serves"),
        "{reason}"
    );
    assert_eq!(segment(&report, "kv")["touchedBytes"], 8 * MIB);
    assert_eq!(segment(&report, "kv")["registeredBytes"], 0);
    let said = mount(&["kv=8Mi,page=4Ki"], &["--backend", "io_uring"]);
    assert_eq!(said.code, Some(3));
    assert!(
        said.err.contains("io_uring is forbidden here"),
        "{}",
        said.err
    );
}

#[test]
fn serve_stays_pinned_until_a_signal_and_then_undoes_it() {
    let _alone = whole_machine();
    let before = Counters::read(&[]);
    let mut command = siding();
    command.args([
        "mount",
        "--segment",
        "kv=32Mi,page=4Ki",
        "--serve",
        "--listen",
        "127.0.0.1:0",
        "--log-level",
        "info",
    ]);
    let mut server = Server::start(&mut command);
    assert_eq!(server.ready()["pinnedBytes"], 32 * MIB);
    assert_eq!(Counters::read(&[]).pinned_pages - before.pinned_pages, 8192);
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
    assert_eq!(Counters::read(&[]), before);
}

#[test]
fn unbounded_must_be_written_out_and_is_said() {
    let report = mount(&["kv=1Mi,page=4Ki"], &["--cap", "unbounded"]).json();
    assert!(report["registration"]["cap"].is_null());
    assert_eq!(report["registration"]["capReason"], "by --cap");
}

/// A dead process's pins outlive it by some milliseconds and count for its user: the next one waits.
#[test]
fn a_restart_right_after_a_kill_gets_all_that_the_user_may_pin() {
    let _alone = whole_machine();
    let scratch = scratch();
    for _ in 0..5 {
        let mut command = siding_as_nobody(scratch.path());
        command.args(["mount", "--segment", "kv=7Mi,page=4Ki", "--serve"]);
        let mut server =
            Server::start(command.args(["--listen", "127.0.0.1:0", "--log-level", "info"]));
        assert_eq!(server.ready()["pinnedBytes"], 7 * MIB);
        server.end(Signal::KILL);
        let mut command = siding_as_nobody(scratch.path());
        let said = Said::of(command.args(["mount", "--segment", "kv=7Mi,page=4Ki", "-o", "json"]));
        assert_eq!(
            segment(&said.json(), "kv")["registeredBytes"],
            7 * MIB,
            "{}",
            said.out
        );
    }
}

/// A signal at any moment of a mount with reserved pages: all of it is undone.
#[test]
fn interrupted_at_any_moment_no_page_stays_reserved() {
    let _alone = whole_machine();
    let before = Counters::read(&[]);
    for delay_ms in [0, 1, 2, 4, 6, 8, 12, 16, 24, 40, 80, 160] {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let mut command = siding();
            command.args(["mount", "--segment", "kv=1Gi,page=2Mi", "--reserve"]);
            let mut server = Server::start_silently(&mut command);
            std::thread::sleep(std::time::Duration::from_millis(delay_ms));
            let _ = server.end(signal);
        }
    }
    let after = Counters::read(&[]);
    assert_eq!(after, before);
}

/// Surplus pages are in the count that is read, but not in the one that is written.
#[test]
fn reserving_beside_surplus_pages_gives_back_what_was_taken() {
    let _alone = whole_machine();
    let knob = huge_pages(64);
    let mut command = siding();
    command.args(["mount", "--segment", "kv=128Mi,page=2Mi", "--serve"]);
    let mut server =
        Server::start(command.args(["--listen", "127.0.0.1:0", "--log-level", "info"]));
    let _ = server.ready();
    drop(knob);
    assert_eq!(pool_2mi(), [64, 0, 0, 64], "all in use, all surplus");
    let report = mount(&["x=4Mi,page=2Mi"], &["--reserve"]).json();
    assert_eq!(report["reservedPages"]["2097152"], 2);
    assert_eq!(pool_2mi(), [64, 0, 0, 64]);
    assert_eq!(server.end(Signal::TERM).code(), Some(0));
    assert_eq!(pool_2mi(), [0, 0, 0, 0]);
}

/// Nothing that was reserved is ever free for another to count on, nor does it need us to go: a page
/// in use is the kernel's already.
#[test]
fn reserved_pages_in_use_go_with_their_mapping_also_when_killed() {
    let _alone = whole_machine();
    for (knob_pages, total) in [(0, 64), (3, 64)] {
        let _knob = huge_pages(knob_pages);
        let mut command = siding();
        command.args(["mount", "--segment", "kv=128Mi,page=2Mi", "--reserve"]);
        let mut server = Server::start(command.args([
            "--serve",
            "--listen",
            "127.0.0.1:0",
            "--log-level",
            "info",
        ]));
        let _ = server.ready();
        assert_eq!(pool_2mi(), [total, 0, 0, total - knob_pages]);
        let _ = server.end(Signal::KILL);
        // The kernel takes a ring that nobody closed apart a moment after its process has gone.
        eventually(|| match pool_2mi() {
            pool if pool == [knob_pages, knob_pages, 0, 0] => Ok(()),
            pool => Err(format!("{pool:?}")),
        });
    }
}

#[test]
fn several_that_reserve_at_once_take_turns_and_all_succeed() {
    let _alone = whole_machine();
    let before = Counters::read(&[]);
    for _ in 0..5 {
        let mounts: Vec<_> = (0..3)
            .map(|_| std::thread::spawn(|| mount(&["kv=128Mi,page=2Mi"], &["--reserve"])))
            .collect();
        for mount in mounts {
            let said = mount.join().unwrap();
            assert_eq!(said.code, Some(0), "{}", said.err);
        }
    }
    assert_eq!(Counters::read(&[]), before);
}

#[test]
fn output_that_cannot_be_written_is_said_and_no_panic() {
    let _alone = whole_machine();
    let full = || {
        std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap()
    };
    let mut command = siding();
    let mut child = command
        .args(["mount", "--segment", "kv=4Ki"])
        .stdout(full())
        .stderr(full())
        .spawn()
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let mut command = siding();
    let mut child = command
        .args(["mount", "--segment", "kv=8Pi,page=4Ki"])
        .stderr(full())
        .spawn()
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn few_threads_and_few_files_are_enough_or_said() {
    let _alone = whole_machine();
    let run = |limit: &str, arguments: &str| {
        let script = format!(
            "{limit} && exec {} {arguments}",
            siding_tests::binary().display()
        );
        Said::of(std::process::Command::new("bash").args(["-c", &script]))
    };
    let said = run("ulimit -n 16", "mount --segment kv=4Ki");
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(said.err.contains("RLIMIT_NOFILE allows 16"), "{}", said.err);
    let said = run("ulimit -n 66", "mount --segment kv=2Gi,page=4Ki");
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(said.err.contains("72 are needed"), "{}", said.err);
    let said = run("ulimit -f 16", "mount --segment kv=64Mi,page=2Mi --reserve");
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(said.err.contains("File too large"), "{}", said.err);
}
