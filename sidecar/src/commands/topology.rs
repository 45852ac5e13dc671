//! `siding topology`.

mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use siding_topology::catalogue::Catalogue;
use siding_topology::distance::{Distance, distance};
use siding_topology::node::Node;
use siding_topology::read::is_type_name;
use siding_topology::{Finding, PciAddress, ReadOptions, Root, read_node};

use crate::failure::Failure;
use crate::output;

/// Arguments of `siding topology`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  siding topology
  siding topology --capture node.tar       to attach to a report
  siding topology --root node.tar -o yaml  the same node, read elsewhere")]
pub struct TopologyArgs {
    /// Where /sys and /proc are: a folder, or a file made by --capture
    #[arg(long, value_name = "DIR|FILE", default_value = "/")]
    root: PathBuf,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    output: Form,
    /// Also write what was read, and nothing else, to this archive (tar)
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Count software devices (rdma_rxe, siw) as usable
    #[arg(long)]
    allow_soft_rdma: bool,
    /// The cloud's name for the node's type, such as p5.48xlarge, where the firmware does not tell
    #[arg(long, value_name = "TYPE")]
    instance_type: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people.
    Table,
    /// For machines.
    Yaml,
    /// For machines.
    Json,
}

/// A node, and how far each NIC is from each GPU.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    #[serde(flatten)]
    node: &'a Node,
    /// By GPU and NIC; null where it is unknown.
    distances: BTreeMap<PciAddress, BTreeMap<&'a str, Option<Distance>>>,
}

impl<'a> Report<'a> {
    fn of(node: &'a Node) -> Self {
        let distances = node.known_gpus().iter().map(|gpu| {
            let nics = node.known_nics().iter().map(|nic| {
                let place = nic.place.as_ref();
                let found = place.and_then(|place| distance(&gpu.place, place));
                (nic.name.as_str(), found)
            });
            (gpu.place.address, nics.collect())
        });
        Self {
            node,
            distances: distances.collect(),
        }
    }
}

impl TopologyArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.check_type()?;
        let wrong = |finding: Finding| Failure::input(format!("--root: {finding}"));
        let mut root = Root::open(&self.root).map_err(wrong)?;
        if self.capture.is_some() {
            root = root.recording();
        }
        let options = ReadOptions {
            allow_soft_rdma: self.allow_soft_rdma,
            instance_type: self.instance_type.clone(),
            ..ReadOptions::default()
        };
        let mut node = read_node(&root, &options);
        node.findings.extend(self.uncatalogued());
        if let Some(file) = &self.capture {
            write_capture(&root, file)?;
        }
        let report = Report::of(&node);
        let text = match self.output {
            Form::Table => table::table(&node),
            Form::Yaml => serde_saphyr::to_string(&report).map_err(Failure::failed)?,
            Form::Json => {
                let text = serde_json::to_string_pretty(&report).map_err(Failure::failed)?;
                text + "\n"
            }
        };
        output::print(text)
    }
}

impl TopologyArgs {
    /// What is said of a given type that nothing is published of.
    fn uncatalogued(&self) -> Option<Finding> {
        let given = self.instance_type.as_deref()?;
        let is_known = Catalogue::published().entry(given).is_some();
        (!is_known).then(|| Finding {
            path: "--instance-type".into(),
            reason: format!(
                "nothing is published of {given}: only what the tree shows is known of the node"
            ),
        })
    }

    fn check_type(&self) -> Result<(), Failure> {
        match &self.instance_type {
            Some(given) if !is_type_name(given) => Err(Failure::input(format!(
                "--instance-type: {given:?} is no type's name; write 1 to 63 letters, digits, \
                 '.', '_' and '-', such as p5.48xlarge, or leave it out"
            ))),
            _ => Ok(()),
        }
    }
}

fn write_capture(root: &Root, file: &Path) -> Result<(), Failure> {
    let mut archive = Vec::new();
    root.capture(&mut archive)
        .and_then(|()| output::write_file(file, &archive))
        .map_err(|error| Failure::failed(format!("--capture: {}: {error}", file.display())))
}
