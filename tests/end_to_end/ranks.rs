//! The ranks of `bench registration`, at the limits of a user and under a user's hands.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use siding_tests::{PATIENCE, Said, binary, scratch, siding, siding_as, whole_machine};

/// Users of these tests alone.
const PINNING: u32 = 64_001;
const STARTING: u32 = 64_002;

fn file(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("buffers");
    fs::write(&path, text).unwrap();
    path
}

fn bench(mut command: Command, args: &str, buffers: &Path) -> Said {
    command.args(["bench", "registration", "--rounds", "1"]);
    command.args(args.split(' ')).arg("--buffers").arg(buffers);
    Said::of(&mut command)
}

/// What one rank answers that is simply let go, whatever the bench would have said before.
fn rank(mut command: Command, buffers: &[u64]) -> Value {
    let job = json!({"buffers": buffers, "cap": null, "pageBytes": 4096, "touched": true});
    let command = command.args(["bench", "rank"]).stdin(Stdio::piped());
    let mut rank = command.stdout(Stdio::piped()).spawn().unwrap();
    write!(rank.stdin.take().unwrap(), "{job}\ngo\n").unwrap();
    let output = rank.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

/// Its formula for what is pinned is the kernel's: at the limit all is registered, and a page below
/// the bench refuses what would fail, where it would.
#[test]
fn what_may_just_be_pinned_is_registered_and_a_page_less_is_refused() {
    let _alone = whole_machine();
    let scratch = scratch();
    for (count, bytes) in [(100_u64, 4096_u64), (3, 2 << 20), (20, 65_536)] {
        let buffers = file(scratch.path(), &format!("{bytes} {count}\n"));
        let list = vec![bytes; usize::try_from(count).unwrap()];
        let at = |limit: u64| {
            let limit = format!("--memlock={limit}:{limit}");
            siding_as(PINNING, scratch.path(), &[&limit])
        };
        let exact = count * (bytes + 8192);
        let fits = bench(at(exact), "--ranks 1 --cap auto", &buffers);
        assert_eq!(fits.code, Some(0), "{}", fits.err);
        let answer = rank(at(exact - 4096), &list);
        let failed = answer["failed"].as_u64().unwrap();
        let refused = bench(at(exact - 4096), "--ranks 1 --cap auto", &buffers);
        if failed == 0 {
            // A kernel that does not count rings.
            assert_eq!(refused.code, Some(0), "{}", refused.err);
            continue;
        }
        let why = answer["why"].as_str().unwrap();
        assert!(
            why.contains("RLIMIT_MEMLOCK counts all that a user's"),
            "{why}"
        );
        let words =
            format!("are to be pinned, {exact} bytes with an io_uring ring for each buffer");
        refused.assert_refused(3, &words);
    }
    // Of two ranks together, too.
    let buffers = file(scratch.path(), "64Ki 60\n");
    let limit = ["--memlock=8388608:8388608"];
    let two = siding_as(PINNING, scratch.path(), &limit);
    let said = bench(two, "--ranks 2 --cap auto", &buffers);
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
}

#[test]
fn descriptors_and_processes_are_counted_before_any_rank_is_started() {
    let scratch = scratch();
    let buffers = file(scratch.path(), "4Ki 16\n");
    let few_files = siding_as(STARTING, scratch.path(), &["--nofile=90:90"]);
    bench(few_files, "--ranks 40", &buffers).assert_refused(
        3,
        "--ranks: the pipes of 40 ranks need 112 file descriptors, RLIMIT_NOFILE allows 90; to mend it: ulimit -n 112",
    );
    let few_tasks = siding_as(STARTING, scratch.path(), &["--nproc=5:5"]);
    bench(few_tasks, "--ranks 4 --cap 1", &buffers).assert_refused(
        3,
        "RLIMIT_NPROC allows this user 5 and 1 are there; to mend it: ",
    );
    let few_tasks = siding_as(STARTING, scratch.path(), &["--nproc=3:3"]);
    bench(few_tasks, "--ranks 1 --cap unbounded", &buffers).assert_refused(
        3,
        "--ranks, --cap: 1 rank of up to 16 threads are 17 more processes and",
    );
    // Exactly as many as are needed, and all of them run.
    let enough = siding_as(STARTING, scratch.path(), &["--nproc=18:18"]);
    let said = bench(enough, "--ranks 1 --cap unbounded", &buffers);
    assert_eq!(said.code, Some(0), "{}", said.err);
}

/// What the bench then refuses (a unit test has that).
#[test]
fn a_rank_tells_how_many_threads_it_got() {
    let scratch = scratch();
    let user = STARTING + 1;
    let few = rank(
        siding_as(user, scratch.path(), &["--nproc=3:3"]),
        &[4096; 50],
    );
    assert_eq!((&few["failed"], &few["threads"]), (&json!(0), &json!(3)));
    let all = rank(
        siding_as(user, scratch.path(), &["--nproc=64:64"]),
        &[4096; 50],
    );
    assert_eq!((&all["failed"], &all["threads"]), (&json!(0), &json!(50)));
}

/// The processes that `parent` started.
fn children(parent: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    let pids = lists.iter().flat_map(|list| list.split_whitespace());
    pids.map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn a_rank_that_is_killed_is_told_by_its_signal() {
    let _alone = whole_machine();
    let mut command = siding();
    command.args(["bench", "registration", "--ranks", "2", "--rounds", "1000"]);
    let bench = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let bench = bench.spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !children(bench.id()).first().is_some_and(|rank| {
        let rank = Pid::from_raw(*rank).unwrap();
        kill_process(rank, Signal::KILL).is_ok()
    }) {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
    let said = Said::from(bench.wait_with_output().unwrap());
    said.assert_refused(1, "siding: a rank was killed (signal: 9 (SIGKILL)): ");
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
}

#[test]
fn a_bench_outlives_its_binary() {
    let _alone = whole_machine();
    let scratch = scratch();
    let buffers = file(scratch.path(), "1Mi 64\n");
    let copy = scratch.path().join("copy");
    fs::copy(binary(), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.args(["bench", "registration", "--rounds", "30", "--cap", "1"]);
    let bench = command.arg("--buffers").arg(&buffers).stdin(Stdio::null());
    let bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut bench = bench.spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while children(bench.id()).is_empty() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
    fs::remove_file(&copy).unwrap();
    assert!(bench.try_wait().unwrap().is_none());
    let said = Said::from(bench.wait_with_output().unwrap());
    assert_eq!(said.code, Some(0), "{}", said.err);
}
