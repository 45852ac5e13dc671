//! How long a reading takes. A test binary of its own, so that no other test runs beside it.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use siding_fixtures::instances;
use siding_topology::{ReadOptions, Root, read_node};

/// What is done at each start of a pod must not be felt.
#[test]
fn a_p5_is_read_in_under_20_ms() {
    let planted = instances::of("p5.48xlarge").unwrap().planted();
    let root = Root::at(planted.path());
    let read = |root: &Root| {
        let start = Instant::now();
        let node = read_node(root, &ReadOptions::default());
        assert_eq!((node.known_gpus().len(), node.known_nics().len()), (8, 32));
        start.elapsed()
    };
    let best = (0..100).map(|_| read(&root)).min().unwrap();
    let recorded = (0..20).map(|_| read(&root.recording())).min().unwrap();
    println!("read in {best:?}, with a recording in {recorded:?}");
    assert!(best < Duration::from_millis(20), "{best:?}");
}
