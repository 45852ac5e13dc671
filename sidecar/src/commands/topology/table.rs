//! A node as tables for people.

use std::fmt::{Display, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use siding_topology::distance::distance;
use siding_topology::hugepages::Pool;
use siding_topology::node::{Gpu, Nic, Node, PciPlace};
use siding_topology::numa::NumaNode;
use siding_topology::size::{binary, page_name};

use crate::output::plain;

const LEGEND: &str = "\
PIX  at most one PCIe bridge between, or one switch
PXB  several PCIe bridges, but no host bridge
PHB  a PCIe host bridge (typically the CPU)
NODE the interconnect between host bridges of one NUMA node
SYS  the interconnect between NUMA nodes
?    the kernel does not tell
";

/// Everything that is known of the node.
pub(super) fn table(node: &Node) -> String {
    let mut text = String::new();
    let instance_type = or_unknown(node.instance_type.as_ref());
    let _ = writeln!(text, "instance type: {instance_type}");
    let _ = match node.cores {
        Some(cores) => writeln!(text, "cores: {} ({:?})", cores.count, cores.source),
        None => writeln!(text, "cores: unknown"),
    };
    section(
        &mut text,
        "NUMA nodes",
        node.numa.as_deref().map(numa).as_ref(),
    );
    section(
        &mut text,
        "huge pages",
        node.pools.as_deref().map(pools).as_ref(),
    );
    section(&mut text, "GPUs", node.gpus.as_deref().map(gpus).as_ref());
    section(&mut text, "NICs", node.nics.as_deref().map(nics).as_ref());
    if !node.known_gpus().is_empty() && !node.known_nics().is_empty() {
        let _ = write!(text, "\n{}\n{LEGEND}", matrix(node));
    }
    if !node.findings.is_empty() {
        text.push_str("\nfindings:\n");
    }
    for finding in &node.findings {
        let _ = writeln!(text, "  {}", plain(&finding.to_string()));
    }
    text
}

fn section(text: &mut String, title: &str, table: Option<&Table>) {
    let _ = match table {
        None => writeln!(text, "\n{title}: unknown"),
        Some(table) if table.row_count() == 0 => writeln!(text, "\n{title}: none"),
        Some(table) => writeln!(text, "\n{title}:\n{table}"),
    };
}

fn new_table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    table
}

fn or_unknown(value: Option<impl Display>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| plain(&value.to_string()))
}

fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| plain(&value.to_string()))
}

fn numa(nodes: &[NumaNode]) -> Table {
    let mut table = new_table(["NODE", "CPUS", "MEMORY", "FREE MEMORY"]);
    for node in nodes {
        table.add_row([
            node.id.to_string(),
            or_unknown(node.cpus.as_ref()),
            or_unknown(node.memory_total_bytes.map(binary)),
            or_unknown(node.memory_free_bytes.map(binary)),
        ]);
    }
    table
}

fn pools(pools: &[Pool]) -> Table {
    let mut table = new_table(["PAGE", "PAGES", "FREE", "PROMISED", "FREE BY NODE"]);
    for pool in pools {
        let nodes = pool.nodes.iter();
        let by_node: Vec<String> = nodes
            .map(|node| format!("{}: {}", node.node, node.free))
            .collect();
        table.add_row([
            page_name(pool.page_bytes),
            pool.total.to_string(),
            pool.free.to_string(),
            pool.reserved.to_string(),
            by_node.join(", "),
        ]);
    }
    table
}

fn gpus(gpus: &[Gpu]) -> Table {
    let mut table = new_table(["GPU", "ADDRESS", "NUMA", "HOST BRIDGE", "PCI ID", "UUID"]);
    for (index, gpu) in gpus.iter().enumerate() {
        table.add_row([
            format!("GPU{index}"),
            gpu.place.address.to_string(),
            or_unknown(gpu.place.numa),
            host_bridge(&gpu.place),
            id(gpu.vendor, gpu.device),
            or_unknown(gpu.uuid.as_ref()),
        ]);
    }
    table
}

fn nics(nics: &[Nic]) -> Table {
    let mut table = new_table([
        "NIC",
        "NAME",
        "ADDRESS",
        "NUMA",
        "HOST BRIDGE",
        "PCI ID",
        "DRIVER",
        "PORT",
        "LINK",
        "Gbit/s",
        "NETDEV",
        "UVERBS",
        "USABLE",
    ]);
    for (index, nic) in nics.iter().enumerate() {
        let place = nic.place.as_ref();
        let reason = |reason: siding_topology::node::Unusable| format!("no: {}", reason.as_str());
        table.add_row([
            format!("NIC{index}"),
            plain(&nic.name),
            or_dash(place.map(|place| place.address)),
            or_unknown(place.and_then(|place| place.numa)),
            or_dash(place.map(host_bridge)),
            or_dash(nic.ids.map(|(vendor, device)| id(vendor, Some(device)))),
            or_unknown(nic.driver.as_ref()),
            port(nic),
            or_unknown(nic.link_layer.as_ref()),
            or_unknown(nic.rate_gbps),
            or_dash(nic.netdev.as_ref()),
            or_dash(nic.uverbs.as_ref()),
            nic.unusable.map_or_else(|| "yes".to_owned(), reason),
        ]);
    }
    table
}

fn host_bridge(place: &PciPlace) -> String {
    let known = place.has_known_root().then_some(&place.root);
    or_unknown(known)
}

fn id(vendor: u16, device: Option<u16>) -> String {
    let device = device.map_or_else(|| "?".to_owned(), |device| format!("{device:04x}"));
    format!("{vendor:04x}:{device}")
}

/// `1: ACTIVE`.
fn port(nic: &Nic) -> String {
    let state = or_unknown(nic.port_state.as_ref());
    nic.port
        .map_or(state.clone(), |port| format!("{port}: {state}"))
}

/// GPUs down, NICs across, in the words of `nvidia-smi topo -m`.
fn matrix(node: &Node) -> String {
    let mut text = format!("{:6}", "");
    for index in 0..node.known_nics().len() {
        let _ = write!(text, " {:5}", format!("NIC{index}"));
    }
    for (index, gpu) in node.known_gpus().iter().enumerate() {
        let _ = write!(text, "\n{:6}", format!("GPU{index}"));
        for nic in node.known_nics() {
            let place = nic.place.as_ref();
            let found = place.and_then(|place| distance(&gpu.place, place));
            let _ = write!(text, " {:5}", found.map_or("?", |found| found.as_str()));
        }
    }
    let lines = text.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use siding_fixtures::instances;
    use siding_topology::{ReadOptions, Root, read_node};

    fn shown(instance_type: &str) -> String {
        let planted = instances::of(instance_type).unwrap().planted();
        table(&read_node(
            &Root::at(planted.path()),
            &ReadOptions::default(),
        ))
    }

    fn line(text: &str, start: &str) -> String {
        let mut lines = text.lines().filter(|line| line.starts_with(start));
        let words = lines.next().unwrap().split_whitespace();
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_p4d_in_full() {
        let text = shown("p4d.24xlarge");
        for want in [
            "instance type: p4d.24xlarge\ncores: 96 (Online)\n",
            "│ 1    ┆ 48-95 ┆ 1Ti    ┆ 512Gi       │",
            "│ PAGE ┆ PAGES ┆ FREE ┆",
            "│ 2Mi  ┆ 0     ┆ 0    ┆ 0        ┆ 0: 0, 1: 0   │",
            "│ GPU7 ┆ 0000:a0:1d.0 ┆ 1    ┆ pci0000:a0  ┆ 10de:20b0 ┆ GPU-00000000-0000-",
        ] {
            assert!(text.contains(want), "{want}\n{text}");
        }
        assert_eq!(line(&text, "GPU0 "), "GPU0 PHB NODE SYS SYS");
        assert_eq!(line(&text, "GPU7 "), "GPU7 SYS SYS NODE PHB");
        assert!(!text.contains("findings"), "{text}");
    }

    #[test]
    fn reasons_and_gaps_are_shown() {
        let text = shown("p6-b200.48xlarge");
        assert!(text.contains("┆ no: NvlinkController │"), "{text}");
        let text = shown("c5n.18xlarge");
        for want in [
            "\nGPUs: none\n",
            "┆ unknown ┆ pci0000:00",
            "\nfindings:\n  /",
            ": 0 GPUs and 1 NIC are on no NUMA node that the kernel tells\n",
        ] {
            assert!(text.contains(want), "{want}\n{text}");
        }
    }

    /// Whatever the tree holds, lines stay lines and a terminal is not steered.
    #[test]
    fn control_characters_are_written_out() {
        let planted = instances::of("p4d.24xlarge").unwrap().planted();
        let mut node = read_node(&Root::at(planted.path()), &ReadOptions::default());
        let steers = "a\u{1b}[31m\nb\u{9b}";
        node.instance_type = Some(steers.to_owned());
        node.gpus.as_mut().unwrap()[0].uuid = Some(steers.to_owned());
        let nic = &mut node.nics.as_mut().unwrap()[0];
        nic.name = steers.to_owned();
        for field in [&mut nic.driver, &mut nic.port_state, &mut nic.netdev] {
            *field = Some(steers.to_owned());
        }
        node.findings.push(Root::host().finding(steers, steers));
        let text = table(&node);
        assert!(!text.contains(|letter: char| letter != '\n' && letter.is_control()));
        assert_eq!(text.matches("a\\u{1b}[31m\\nb\\u{9b}").count(), 8, "{text}");
    }

    #[test]
    fn nothing_is_unknown_and_not_zero() {
        let empty = tempfile::tempdir().unwrap();
        let text = table(&read_node(&Root::at(empty.path()), &ReadOptions::default()));
        let start = "instance type: unknown\ncores: unknown\n\nNUMA nodes: unknown\n\nhuge pages: unknown\n\n\
             GPUs: unknown\n\nNICs: unknown\n";
        assert!(text.starts_with(start), "{text}");
    }
}
