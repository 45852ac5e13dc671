//! `siding plan`.

mod show;

use std::fs::File;
use std::io::Read as _;
use std::num::{NonZeroU16, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use siding_topology::catalogue::{Catalogue, CatalogueEntry};
use siding_topology::factor::Factor;
use siding_topology::node::Node;
use siding_topology::plan::{Devices, Plan, PlanInput, SegmentInput, plan};
use siding_topology::{ReadOptions, Root, read_node};

use crate::config::{Numa, Page, SMALLEST_PAGE_BYTES, Segment};
use crate::failure::Failure;
use crate::output;

/// A node's description is far smaller.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Arguments of `siding plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --topology, and without any of --cores, --gpus, --nics and --instance-type, the node is
this machine. With one of these four, nothing is read: what is not given is taken from what is
published of the instance type, or is unknown, and an unknown cap is left out, never 0.

Examples:
  siding plan                                          this machine
  siding plan --instance-type p5.48xlarge --ranks 4    by what is published
  siding topology -o json > node.json; siding plan --topology node.json --segment kv=64Gi,page=2Mi")]
pub struct PlanArgs {
    /// The node as `siding topology -o json` (or yaml) printed it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["gpus", "nics"])]
    topology: Option<PathBuf>,
    /// The node's hardware threads that pods may use
    #[arg(long, value_name = "N")]
    cores: Option<NonZeroU16>,
    /// Its GPUs
    #[arg(long, value_name = "N")]
    gpus: Option<u16>,
    /// Its NICs that can be used
    #[arg(long, value_name = "N")]
    nics: Option<u16>,
    /// GPUs of a rank
    #[arg(long, value_name = "N", default_value = "1")]
    gpus_per_rank: NonZeroU16,
    /// Ranks that are bound to the node; where its GPUs have room for more, these count
    #[arg(long, value_name = "N", default_value = "0")]
    ranks: u16,
    /// Threads that register at once, as a part of the cores: above 0, at most 1
    #[arg(long, value_name = "F")]
    factor: Option<Factor>,
    /// The cloud's name for the node's type, such as p5.48xlarge
    #[arg(long, value_name = "TYPE")]
    instance_type: Option<String>,
    /// A host segment of the node that is to fit into its NICs' page entries; pages of 4Ki where
    /// none are named. May be given several times: all are on the node at once
    #[arg(long = "segment", value_name = "[NAME=]SIZE[,page=…][,numa=N]", value_parser = segment)]
    segments: Vec<SegmentInput>,
    /// How the plan is printed
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    output: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people.
    Table,
    /// For machines.
    Yaml,
    /// For machines.
    Json,
    /// For engines: variables of their environment.
    Env,
}

impl PlanArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        let node = self.node()?;
        let published = Catalogue::published();
        let entry = self.entry(&published, node.as_ref())?;
        let devices = match &node {
            Some(node) => Devices::Node(node),
            None => Devices::Counts {
                gpus: self.gpus.map(usize::from),
                nics: self.nics.map(usize::from),
            },
        };
        let plan = plan(&PlanInput {
            devices,
            entry,
            cores: self.cores.map(NonZeroUsize::from),
            gpus_per_rank: NonZeroUsize::from(self.gpus_per_rank),
            ranks_bound: usize::from(self.ranks),
            factor: self.factor,
            segments: self.segments,
        });
        output::print(match self.output {
            Form::Table => show::table(&plan),
            Form::Env => show::env(&plan),
            Form::Yaml => serde_saphyr::to_string(&plan).map_err(Failure::failed)?,
            Form::Json => serde_json::to_string_pretty(&plan).map_err(Failure::failed)? + "\n",
        })?;
        refused(&plan)
    }

    /// The node that is planned for; `None` where only counts are given.
    fn node(&self) -> Result<Option<Node>, Failure> {
        if let Some(file) = &self.topology {
            return read_file(file).map(Some);
        }
        let is_described = self.cores.is_some()
            || self.gpus.is_some()
            || self.nics.is_some()
            || self.instance_type.is_some();
        Ok((!is_described).then(|| read_node(&Root::host(), &ReadOptions::default())))
    }

    /// What is published of the node's type: of the given one, else of the one that the node tells.
    fn entry<'a>(
        &self,
        published: &'a Catalogue,
        node: Option<&Node>,
    ) -> Result<Option<&'a CatalogueEntry>, Failure> {
        let Some(given) = &self.instance_type else {
            let told = node.and_then(|node| node.instance_type.as_deref());
            return Ok(told.and_then(|told| published.entry(told)));
        };
        let unknown = || {
            let entries = published.entries().iter();
            let known: Vec<&str> = entries.map(|entry| entry.instance_type.as_str()).collect();
            let known = known.join(", ");
            Failure::input(format!(
                "--instance-type: nothing is known of {given:?}; leave it out and give --cores, \
                 --gpus and --nics, or write one of {known}"
            ))
        };
        published.entry(given).ok_or_else(unknown).map(Some)
    }
}

/// Segments that don't fit.
fn refused(plan: &Plan) -> Result<(), Failure> {
    let refusals: Vec<String> = plan
        .segments
        .iter()
        .filter_map(|segment| Some(format!("{}: {}", segment.name, segment.refusal.as_ref()?)))
        .collect();
    if refusals.is_empty() {
        return Ok(());
    }
    Err(Failure::lacking(refusals.join("\n")))
}

fn read_file(path: &Path) -> Result<Node, Failure> {
    let wrong = |what: String| Failure::input(format!("--topology: {}: {what}", path.display()));
    let mut text = String::new();
    // A pipe has no length.
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong("larger than 16 MiB".to_owned()));
    }
    parse(&text).map_err(|error| {
        wrong(format!(
            "not what `siding topology -o json` or `-o yaml` prints: {error}"
        ))
    })
}

fn parse(text: &str) -> Result<Node, String> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    // What follows the first line quotes the file.
    let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
    serde_saphyr::from_str(text).map_err(|error| first_line(error.to_string()))
}

/// `[NAME=]SIZE[,page=…][,numa=N]`. Pages that the kernel chooses count as the smallest.
fn segment(text: &str) -> Result<SegmentInput, String> {
    let is_named = text
        .split(',')
        .next()
        .is_some_and(|first| first.contains('='));
    let named = if is_named {
        text.to_owned()
    } else {
        format!("segment={text}")
    };
    let segment: Segment = named.parse().map_err(|error| format!("{error}"))?;
    let page_bytes = match segment.page {
        Page::Auto | Page::Transparent => SMALLEST_PAGE_BYTES,
        Page::Size(bytes) => bytes,
    };
    Ok(SegmentInput {
        name: segment.name,
        bytes: segment.size.get(),
        page_bytes: NonZeroU64::new(page_bytes).ok_or("no page has 0 bytes")?,
        numa: match segment.numa {
            Numa::Local | Numa::Interleave => None,
            Numa::Node(node) => Some(node),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use siding_fixtures::instances;

    #[test]
    fn segments_as_written() {
        for (text, name, bytes, page, numa) in [
            ("64Gi", "segment", 64 << 30, 4096, None),
            ("64Gi,page=2Mi", "segment", 64 << 30, 2 << 20, None),
            ("kv=1Gi,page=1Gi,numa=1", "kv", 1 << 30, 1 << 30, Some(1)),
            ("kv=1Gi,page=auto,numa=local", "kv", 1 << 30, 4096, None),
        ] {
            let got = segment(text).unwrap();
            assert_eq!((got.name.as_str(), got.bytes), (name, bytes), "{text}");
            assert_eq!((got.page_bytes.get(), got.numa), (page, numa), "{text}");
        }
        for text in ["", "kv", "kv=", "1Gi,page=3", "1Gi,pages=2Mi", "kv=1.5"] {
            assert!(segment(text).is_err(), "{text:?}");
        }
    }

    fn p5() -> Node {
        let planted = instances::of("p5.48xlarge").unwrap().planted();
        read_node(&Root::at(planted.path()), &ReadOptions::default())
    }

    #[test]
    fn a_node_as_json_or_yaml() {
        let node = p5();
        let json = serde_json::to_string_pretty(&node).unwrap();
        assert_eq!(parse(&json).as_ref(), Ok(&node));
        let yaml = serde_saphyr::to_string(&node).unwrap();
        assert_eq!(parse(&yaml).as_ref(), Ok(&node));
        assert!(parse("{}").unwrap_err().contains("gpus"));
        assert!(parse("").is_err());
    }

    fn planned(node: &Node, segments: &[&str]) -> Plan {
        let published = Catalogue::published();
        plan(&PlanInput {
            devices: Devices::Node(node),
            entry: published.entry("p5.48xlarge"),
            cores: None,
            gpus_per_rank: NonZeroUsize::new(4).unwrap(),
            ranks_bound: 0,
            factor: None,
            segments: segments.iter().map(|text| segment(text).unwrap()).collect(),
        })
    }

    #[test]
    fn a_refused_segment_is_a_failure() {
        let node = p5();
        assert_eq!(refused(&planned(&node, &["88Gi"])), Ok(()));
        let failure = refused(&planned(&node, &["1Ti", "kv=4Ti"])).unwrap_err();
        assert_eq!(
            failure.message,
            "kv: 4Ti in pages of 4Ki needs 1073741824 page entries; 32 NICs with 14680064 left on \
             each have 469762048, enough for 1792Gi; pages of 64Ki would fit"
        );
    }

    #[test]
    fn variables_of_engines() {
        let mut node = p5();
        let nics = |first: u8| (first..).take(4).map(|bus| format!("rdmap{bus}s0"));
        let list = |firsts: [u8; 4]| {
            firsts
                .into_iter()
                .flat_map(nics)
                .collect::<Vec<_>>()
                .join(",")
        };
        let want = format!(
            "# cap: 0.95 x 192 cores / 2 ranks = 91.20\n\
             MC_MAX_CONCURRENT_REG_MR=91\n\
             # The rest differs by rank: each takes its own.\n\
             # rank 0 (GPUs 0000:53:00.0 0000:64:00.0 0000:75:00.0 0000:86:00.0):\n\
             # MC_TE_FILTERS={}\n\
             # rank 1 (GPUs 0000:97:00.0 0000:a8:00.0 0000:b9:00.0 0000:ca:00.0):\n\
             # MC_TE_FILTERS={}\n",
            list([79, 96, 113, 130]),
            list([147, 164, 181, 198])
        );
        assert_eq!(show::env(&planned(&node, &[])), want);

        node.cores = None;
        node.gpus.as_mut().unwrap().truncate(1);
        node.nics.as_mut().unwrap().truncate(1);
        let mut input = PlanInput {
            devices: Devices::Node(&node),
            entry: None,
            cores: None,
            gpus_per_rank: NonZeroUsize::MIN,
            ranks_bound: 0,
            factor: None,
            segments: Vec::new(),
        };
        let unknown_cap = "# cap: the node's cores are unknown: no cap is given\n";
        assert_eq!(
            show::env(&plan(&input)),
            format!("{unknown_cap}# rank 0 (GPUs 0000:53:00.0):\nMC_TE_FILTERS=rdmap79s0\n")
        );
        input.devices = Devices::Counts {
            gpus: Some(1),
            nics: Some(0),
        };
        assert_eq!(show::env(&plan(&input)), unknown_cap);
    }

    #[test]
    fn a_table_says_it_all() {
        let text = show::table(&planned(&p5(), &["kv=64Gi,page=2Mi,numa=0"]));
        for part in [
            "instance type: p5.48xlarge\n",
            "cap: 91 a rank (0.95 x 192 cores / 2 ranks = 91.20)\n",
            "factor: 0.95 (the default)\n",
            "cores: 192 (Online)\n",
            "ranks: 2 (8 GPUs, 4 a rank; 0 bound)\n",
            "GPU 0000:86:00.0: below the bridge 0000:78:00.0: 4 usable NICs\n",
            "kv: 64Gi on 16 NICs (the 16 usable NICs of NUMA node 0: 1600 Gbit/s): whole on every \
             NIC: 32768 page entries of 2Mi on a NIC; 23068672 left on each\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }
}
