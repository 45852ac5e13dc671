//! The benchmarks run, with the real peers, and end with the line that others read.

use std::path::Path;
use std::process::Command;

use siding_tests::kernel::Counters;
use siding_tests::{Said, siding, whole_machine};

/// A Python with Mooncake's unmodified wheel.
fn mooncake() -> String {
    let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("mooncake/install");
    let said = Said::of(&mut Command::new(install));
    assert_eq!(said.code, Some(0), "{}", said.err);
    said.out.trim().to_owned()
}

/// The ratios of the last line, by name.
fn ratio(out: &str, name: &str) -> f64 {
    let last = out.lines().last().unwrap();
    let pairs = last.strip_prefix("siding-bench: ").unwrap();
    let value = pairs
        .split(' ')
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    value
        .unwrap_or_else(|| panic!("no {name} in {last}"))
        .parse()
        .unwrap()
}

#[test]
fn bench_mount_measures_all_contestants_on_huge_pages() {
    let _alone = whole_machine();
    let before = Counters::read(&[]);
    let python = mooncake();
    let mut command = siding();
    command.args([
        "bench",
        "mount",
        "--size",
        "256Mi",
        "--rounds",
        "2",
        "--reserve",
        "-o",
        "json",
    ]);
    let said = Said::of(command.args(["--mooncake-python", &python]));
    assert_eq!(said.code, Some(0), "{}", said.err);
    for name in ["vs_kernel", "vs_mooncake", "register_share"] {
        let ratio = ratio(&said.err, name);
        assert!(ratio.is_finite() && ratio > 0.0, "{name} is {ratio}");
    }
    let answer = said.json();
    assert_eq!(
        answer["siding"]["totalSeconds"].as_array().unwrap().len(),
        2
    );
    assert_eq!(
        answer["mooncake"]["totalSeconds"].as_array().unwrap().len(),
        2
    );
    assert!(
        answer["residentBytes"].as_u64().unwrap() < 20 << 20,
        "{}",
        answer["residentBytes"]
    );
    assert_eq!(Counters::read(&[]), before);
}

#[test]
fn bench_mount_says_what_it_could_not_compare() {
    let _alone = whole_machine();
    let mut command = siding();
    let said = Said::of(command.args([
        "bench", "mount", "--size", "64Mi", "--page", "4Ki", "--rounds", "1",
    ]));
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(
        said.out
            .contains("no comparison with Mooncake: no --mooncake-python was given"),
        "{}",
        said.out
    );
    assert!(
        said.out
            .lines()
            .last()
            .unwrap()
            .contains("vs_mooncake=unavailable")
    );
}

#[test]
fn a_peer_that_is_asked_for_must_run() {
    let _alone = whole_machine();
    let mut command = siding();
    command.args([
        "bench", "mount", "--size", "64Mi", "--page", "4Ki", "--rounds", "1",
    ]);
    let said = Said::of(command.args(["--mooncake-python", "/nonexistent/python"]));
    assert_eq!(said.code, Some(1), "{}", said.out);
    assert!(said.err.contains("/nonexistent/python"), "{}", said.err);
}
