//! The simulator and the registration bench, as a user runs them.

use siding_tests::{Said, scratch, siding, whole_machine};

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
    assert!(
        std::fs::read_to_string(picture)
            .unwrap()
            .starts_with("<svg")
    );
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
    let said = Said::of(siding().args(["simulate", "--ranks", "8"]));
    assert_eq!(said.code, Some(2), "a node without --sweep");
}

#[test]
fn ranks_register_at_once_and_the_planner_is_compared() {
    let _alone = whole_machine();
    let scratch = scratch();
    let buffers = scratch.path().join("buffers");
    std::fs::write(&buffers, "1Mi 8\n4Mi 2\n").unwrap();
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

    std::fs::write(&buffers, "1Mi x\n").unwrap();
    let said = Said::of(
        siding()
            .args(["bench", "registration", "--buffers"])
            .arg(&buffers),
    );
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("line 1: 'x' is no count"), "{}", said.err);
}
