//! The chart has the definitions that the types make.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn check(directory: &Path) -> Output {
    let crdgen = env!("CARGO_BIN_EXE_crdgen");
    let command = [Path::new("--check"), directory];
    Command::new(crdgen).args(command).output().unwrap()
}

#[test]
fn the_chart_has_them() {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/siding/crds");
    let checked = check(&chart);
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{said}");
}

#[test]
fn one_that_is_absent_is_named_with_the_command_that_makes_it() {
    let checked = check(Path::new("/nonexistent"));
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(1));
    assert!(said.contains("/nonexistent/"), "{said}");
    assert!(
        said.contains("cargo run -p siding-crds --features api --bin crdgen"),
        "{said}"
    );
}
