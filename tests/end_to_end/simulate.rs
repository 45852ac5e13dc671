//! The simulator and the registration bench, as a user runs them.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use siding_tests::{PATIENCE, Said, binary, scratch, siding, whole_machine};

/// The value of a pair in a last line.
fn value<'a>(out: &'a str, prefix: &str, name: &str) -> &'a str {
    let last = out.lines().last().unwrap();
    let pairs = last.strip_prefix(prefix).unwrap();
    let value = pairs
        .split(' ')
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name} in {last}"))
}

#[test]
fn the_model_stands_next_to_what_was_measured() {
    let scratch = scratch();
    let picture = scratch.path().join("picture.svg");
    let said = Said::of(siding().args(["simulate", "--svg"]).arg(&picture));
    assert_eq!(said.code, Some(0), "{}", said.err);
    let median: f64 = value(&said.out, "siding-simulate: ", "median_error")
        .parse()
        .unwrap();
    assert!(median < 0.15, "{median}");
    assert_eq!(
        value(&said.out, "siding-simulate: ", "best_cap_hits"),
        "8/8"
    );
    assert!(fs::read_to_string(picture).unwrap().starts_with("<svg"));
    let said = Said::of(siding().args(["simulate", "-o", "json"]));
    assert!(said.json()["cells"].as_array().unwrap().len() > 40);
}

#[test]
fn one_node_at_every_cap() {
    let mut command = siding();
    let said = Said::of(command.args([
        "simulate", "--sweep", "--cores", "64", "--ranks", "8", "--memory", "host",
    ]));
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert_eq!(value(&said.out, "siding-simulate: ", "planner_cap"), "8");
    for (args, want) in [
        (
            "--ranks 8 --factor 0.5",
            "--ranks, --factor: only with --sweep, which models one node; write --sweep too",
        ),
        (
            "--sweep --ranks 4096 --nics 4096",
            "write less of both, such as --ranks 8 --nics 32",
        ),
        (
            "--sweep --cores x",
            "invalid value 'x' for '--cores <N>': write a whole number from 1 to 4096",
        ),
    ] {
        Said::of(siding().arg("simulate").args(args.split(' '))).assert_refused(2, want);
    }
}

/// The largest that are accepted. What counts is the time of a core, which others may want too.
#[test]
fn a_sweep_ends_in_some_seconds() {
    let sweep = |node: &str| {
        let mut shell = Command::new("sh");
        let binary = binary();
        let line = format!(
            "ulimit -t 6; exec {} simulate --sweep {node}",
            binary.display()
        );
        Said::of(shell.args(["-c", &line]))
    };
    for node in ["--ranks 545 --nics 1", "--ranks 64 --nics 17 --cores 1"] {
        let said = sweep(node);
        assert_eq!(said.code, Some(0), "{node}: {}", said.err);
    }
    let words = "at most 3 s are; write --ranks of at most 545";
    sweep("--ranks 4096 --nics 1").assert_refused(2, words);
}

/// Few NICs, few cores: there the model would have unbounded win, which nobody has seen.
#[test]
fn no_winner_is_called_where_nothing_was_measured() {
    for (node, why) in [
        (
            "--nics 1",
            "no sweep of device memory was measured on fewer than 16 NICs a rank (here 1)",
        ),
        (
            "--cores 2 --ranks 2",
            "sweeps were measured on 64 to 192 cores (here 2)",
        ),
        (
            "--cores 4096 --ranks 1 --nics 32",
            "sweeps were measured on 64 to 192 cores (here 4096)",
        ),
    ] {
        let mut command = siding();
        let said = Said::of(command.args(["simulate", "--sweep"]).args(node.split(' ')));
        assert_eq!(said.code, Some(0), "{}", said.err);
        for name in ["best_cap", "planner_vs_best"] {
            assert_eq!(value(&said.out, "siding-simulate: ", name), "unavailable");
        }
        let finding = format!("\nfinding: no best cap is named: {why}");
        assert!(said.out.contains(&finding), "{}", said.out);
    }
}

#[test]
fn ranks_register_at_once_and_the_planner_is_compared() {
    let _alone = whole_machine();
    let scratch = scratch();
    let buffers = scratch.path().join("buffers");
    fs::write(&buffers, "1Mi 8\n4Mi 2\n").unwrap();
    let mut command = siding();
    command.args([
        "bench",
        "registration",
        "--ranks",
        "2",
        "--rounds",
        "1",
        "-o",
        "json",
        "--buffers",
    ]);
    let said = Said::of(command.arg(&buffers));
    let sweep = said.json();
    assert_eq!(sweep["ranks"], 2);
    let caps = sweep["caps"].as_array().unwrap();
    assert!(caps.iter().any(|swept| swept["cap"] == sweep["planned"]));
    assert!(
        caps.last().unwrap()["cap"].is_null(),
        "unbounded is tried too"
    );
    let ratio: f64 = value(&said.err, "siding-bench: ", "planner_vs_best")
        .parse()
        .unwrap();
    assert!(ratio > 0.0 && ratio <= 1.0, "{ratio}");

    fs::write(&buffers, "1Mi x\n").unwrap();
    let said = Said::of(
        siding()
            .args(["bench", "registration", "--buffers"])
            .arg(&buffers),
    );
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("line 1: 'x' is no count"), "{}", said.err);
}

/// The processes that `parent` started.
fn children(parent: u32) -> Vec<u32> {
    let tasks = format!("/proc/{parent}/task");
    let tasks = fs::read_dir(tasks).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    let pids = lists.iter().flat_map(|list| list.split_whitespace());
    pids.map(|pid| pid.parse().unwrap()).collect()
}

/// Whether the process is there and no zombie that nobody buries.
fn runs(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

/// A bench in the middle of its rounds, with both ranks there.
fn running_bench() -> (Child, Vec<u32>) {
    let mut command = siding();
    command.args(["bench", "registration", "--ranks", "2", "--rounds", "1000"]);
    let mut bench = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ranks = children(bench.id());
        if ranks.len() == 2 {
            return (bench, ranks);
        }
        assert!(Instant::now() < deadline && bench.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(1));
    }
}

fn wait_until_gone(ranks: &[u32]) {
    let deadline = Instant::now() + PATIENCE;
    while ranks.iter().any(|rank| runs(*rank)) {
        assert!(Instant::now() < deadline, "{ranks:?} are still there");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_interrupted_bench_ends_its_ranks() {
    let _alone = whole_machine();
    let (mut bench, ranks) = running_bench();
    kill_process(Pid::from_child(&bench), Signal::INT).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(130));
    assert!(
        !ranks
            .iter()
            .any(|rank| Path::new(&format!("/proc/{rank}")).exists())
    );
}

/// Also of one that could not end them itself.
#[test]
fn no_rank_outlives_a_bench_that_is_killed() {
    let _alone = whole_machine();
    let (mut bench, ranks) = running_bench();
    bench.kill().unwrap();
    bench.wait().unwrap();
    wait_until_gone(&ranks);
}

#[test]
fn what_the_machine_has_not_is_told_before_any_rank_is_started() {
    let scratch = scratch();
    let buffers = scratch.path().join("buffers");
    let buffers = buffers.to_str().unwrap();
    fs::write(buffers, "1Gi 16384\n").unwrap();
    let long = scratch.path().join("long");
    fs::write(&long, "4Ki\n".repeat(300_000)).unwrap();
    for (args, code, want) in [
        (
            vec!["--ranks", "256", "--buffers", buffers],
            3,
            "--ranks, --buffers: 256 x 16Ti need ",
        ),
        (
            vec!["--page", "16Mi"],
            3,
            "--page: this kernel has no pages of 16Mi; to mend it: use one of 4Ki",
        ),
        (
            vec!["--page", "auto"],
            2,
            "--page: auto and transparent leave open which pages are pinned; write a size",
        ),
        (
            vec!["--ranks", "0"],
            2,
            "invalid value '0' for '--ranks <N>': write a whole number from 1 to 256",
        ),
        (
            vec!["--rounds", "x"],
            2,
            "invalid value 'x' for '--rounds <N>': write a whole number from 1 to 1000",
        ),
        (
            vec!["--buffers", long.to_str().unwrap()],
            2,
            "long: longer than 1048576 bytes; write equal buffers as one line",
        ),
    ] {
        let mut command = siding();
        command.args(["bench", "registration"]).args(&args);
        Said::of(&mut command).assert_refused(code, want);
    }
}

/// A cap alone, and times that are only noise, are not taken for a result.
#[test]
fn what_says_nothing_is_said() {
    let _alone = whole_machine();
    let scratch = scratch();
    let buffers = scratch.path().join("buffers");
    fs::write(&buffers, "4Ki 4\n").unwrap();
    let bench = |cap: &str| {
        let mut command = siding();
        command.args(["bench", "registration", "--rounds", "1", "--cap", cap]);
        Said::of(command.arg("--buffers").arg(&buffers))
    };
    let alone = bench("auto");
    assert_eq!(
        value(&alone.out, "siding-bench: ", "planner_vs_best"),
        "unavailable"
    );
    assert!(
        alone.out.contains("nothing to compare it with"),
        "{}",
        alone.out
    );
    let short = bench("sweep");
    assert_eq!(
        value(&short.out, "siding-bench: ", "contention"),
        "too_short"
    );
    assert!(short.out.contains("such times are noise"), "{}", short.out);
}
