use k8s_openapi::jiff::Timestamp;
use siding_fixtures::instances;
use siding_topology::catalogue::Catalogue;
use siding_topology::rails::rails;
use siding_topology::{ReadOptions, Root, read_node};

use super::*;

fn status_of_machine(machine: &siding_fixtures::Machine) -> NodeTopologyStatus {
    let tree = machine.planted();
    let node = read_node(&Root::at(tree.path()), &ReadOptions::default());
    let catalogue = Catalogue::published();
    let named = node.instance_type.as_deref();
    let rails = rails(&node, named.and_then(|name| catalogue.entry(name)));
    let moment = Moment {
        now: Timestamp::from_second(0).unwrap(),
        generation: Some(1),
        before: &[],
    };
    status_of(&node, &rails, tree.path(), moment)
}

#[test]
fn a_p5_reads_well() {
    let status = status_of_machine(&instances::of("p5.48xlarge").unwrap());
    assert_eq!(status.instance_type.as_deref(), Some("p5.48xlarge"));
    assert_eq!(status.cores.unwrap().count, 192);
    assert_eq!(
        (status.gpu_count, status.usable_nic_count),
        (Some(8), Some(32))
    );
    assert_eq!(status.rail_summary.as_deref(), Some("4 a GPU (SameSwitch)"));
    let gpu = &status.gpus[0];
    assert!(
        gpu.summary.starts_with("0000:53:00.0: 10de:2330, "),
        "{}",
        gpu.summary
    );
    let rail = &status.rails[0];
    assert_eq!(rail.name, gpu.name);
    assert_eq!(
        rail.summary,
        format!("{}: {} (SameSwitch)", rail.name, rail.nics.join(", "))
    );
    assert!(
        status.nics[0].summary.contains("ACTIVE"),
        "{}",
        status.nics[0].summary
    );
    let ready = &status.conditions[0];
    assert_eq!(
        (ready.type_.as_str(), ready.status.as_str()),
        ("Ready", "True")
    );
    assert_eq!(ready.message, "192 cores, 8 GPUs, 32 NICs");
    let names: std::collections::BTreeSet<&str> =
        status.nics.iter().map(|nic| nic.name.as_str()).collect();
    assert_eq!(names.len(), status.nics.len(), "names are the list's keys");
}

#[test]
fn unknown_devices_are_not_counted_as_none() {
    let node = Node {
        gpus: None,
        nics: None,
        ..read_node(&Root::at("/nowhere"), &ReadOptions::default())
    };
    let moment = Moment {
        now: Timestamp::from_second(0).unwrap(),
        generation: Some(1),
        before: &[],
    };
    let node = Node {
        cores: Some(siding_topology::node::NodeCores {
            count: 8.try_into().unwrap(),
            source: CoreSource::Allocatable,
        }),
        ..node
    };
    let status = status_of(&node, &rails(&node, None), Path::new("/nowhere"), moment);
    assert_eq!((status.gpu_count, status.usable_nic_count), (None, None));
    assert_eq!(
        status.conditions[0].message,
        "8 cores, GPUs unknown: see findings, NICs unknown: see findings"
    );
}

#[test]
fn a_nic_that_is_lost_is_named() {
    let mut machine = instances::of("p5.48xlarge").unwrap();
    let before = status_of_machine(&machine);
    let lost = before.nics[0].name.clone();
    machine.port(&lost).state = "1: DOWN".to_owned();
    let status = status_of_machine(&machine);
    assert_eq!(status.usable_nic_count, Some(31));
    let nic = status.nics.iter().find(|nic| nic.name == lost).unwrap();
    assert!(!nic.usable && nic.reason.as_deref() == Some("Down"));
    assert!(
        nic.summary.contains("can't be used: Down"),
        "{}",
        nic.summary
    );
    assert_eq!(
        status.conditions[0].message,
        format!("192 cores, 8 GPUs, 31 of 32 NICs usable ({lost} is Down)")
    );
    assert_eq!(
        status.rail_summary.as_deref(),
        Some("3-4 a GPU (SameSwitch)")
    );
}

#[test]
fn a_machine_without_anything_is_no_error() {
    let status = status_of_machine(&siding_fixtures::Machine::bare("Vendor", "Box", 4, 1));
    assert_eq!(
        (status.gpu_count, status.usable_nic_count),
        (Some(0), Some(0))
    );
    assert_eq!(status.rail_summary, None);
    let host = std::env::temp_dir();
    for finding in &status.findings {
        assert!(finding.starts_with('/'), "{finding}");
        assert!(!finding.starts_with(&*host.to_string_lossy()), "{finding}");
    }
}

#[test]
fn pools_read_well() {
    let node = |node, total, free| siding_topology::hugepages::NodePool { node, total, free };
    let mut of_2mi = Pool {
        page_bytes: 2 << 20,
        total: 1024,
        free: 512,
        reserved: 0,
        surplus: 0,
        overcommit: 0,
        nodes: vec![node(0, 512, 0), node(1, 512, 512)],
    };
    assert_eq!(
        pool(&of_2mi).summary,
        "2Mi: 512 of 1024 free; node0 0 of 512, node1 512 of 512"
    );
    let empty = Pool {
        page_bytes: 1 << 30,
        total: 0,
        free: 0,
        ..of_2mi.clone()
    };
    let both = [of_2mi.clone(), empty.clone()];
    assert_eq!(huge_page_summary(&both).as_deref(), Some("2Mi: 512/1024"));
    assert_eq!(huge_page_summary(&[empty]).as_deref(), Some("none"));
    assert_eq!(huge_page_summary(&[]), None);
    of_2mi.nodes.truncate(1);
    of_2mi.reserved = 3;
    assert_eq!(pool(&of_2mi).summary, "2Mi: 512 of 1024 free, 3 promised");
}
