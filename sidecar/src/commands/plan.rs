//! `siding plan`.

mod described;
mod show;

use std::num::{NonZeroU16, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use siding_topology::catalogue::{Catalogue, CatalogueEntry};
use siding_topology::factor::Factor;
use siding_topology::node::{self, Node};
use siding_topology::plan::{Devices, Plan, PlanInput, SegmentInput, plan};
use siding_topology::{ReadOptions, Root, read_node};

use super::numbers::whole;
use crate::config::{Numa, Page, SMALLEST_PAGE_BYTES, Segment};
use crate::failure::Failure;
use crate::output;

/// Bounds of what one node is believed to have.
const MOST_GPUS: u64 = node::MOST_GPUS as u64;
const MOST_NICS: u64 = node::MOST_NICS as u64;
const MOST_RANKS: u64 = 4096;

/// Arguments of `siding plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
A rank is a process that registers memory of its own, usually one for each GPU; its rails are the
NICs nearest to its GPUs; the cap is how many registrations it has in flight at most.

Without --topology and --root, and without any of --cores, --gpus, --nics and --instance-type, the
node is this machine. With one of these four, nothing is read: what is not given is taken from what
is published of the instance type, or is unknown, and an unknown cap is left out, never 0.

Ranks are numbered by the PCI addresses of their GPUs: rank 0 has the first --gpus-per-rank of them.
With -o env the cap is the same for all; what differs is in force only where there is one rank, or
with --rank. A NIC's name that a shell could take for more than a name is refused there.

Examples:
  siding plan    this machine
  siding plan --instance-type p5.48xlarge --segment kv=64Gi,page=2Mi    by what is published
  siding plan --root node.tar -o env --rank 0    a node that was captured; one rank's variables
  siding topology -o json | siding plan --topology - --segment kv=64Gi,page=2Mi")]
pub struct PlanArgs {
    /// The node as `siding topology -o json` (or yaml) printed it; - is standard input
    #[arg(long, value_name = "FILE|-", conflicts_with_all = ["root", "gpus", "nics"])]
    topology: Option<PathBuf>,
    /// Where the node's /sys and /proc are: a folder, or a file made by `siding topology --capture`
    #[arg(long, value_name = "DIR|FILE", conflicts_with_all = ["gpus", "nics"])]
    root: Option<PathBuf>,
    /// The node's hardware threads that pods may use
    #[arg(long, value_name = "N", value_parser = whole::<NonZeroU16>(1..=node::MOST_CORES as u64))]
    cores: Option<NonZeroU16>,
    /// Its GPUs
    #[arg(long, value_name = "N", value_parser = whole::<u16>(0..=MOST_GPUS))]
    gpus: Option<u16>,
    /// Its NICs that can be used
    #[arg(long, value_name = "N", value_parser = whole::<u16>(0..=MOST_NICS))]
    nics: Option<u16>,
    /// GPUs of a rank: more than 1 where one process drives several
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<NonZeroU16>(1..=MOST_GPUS))]
    gpus_per_rank: NonZeroU16,
    /// Ranks on the node at once, those of all pods together. Planned for is the larger of this and
    /// GPUs / --gpus-per-rank, so that it does not matter which pods are there already; 0 leaves it
    /// to the GPUs
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole::<u16>(0..=MOST_RANKS))]
    ranks: u16,
    /// With -o env: the variables of this rank alone, in force
    #[arg(long, value_name = "N", value_parser = whole::<u16>(0..=MOST_RANKS))]
    rank: Option<u16>,
    /// Threads that register at once, as a part of the cores: above 0, at most 1
    #[arg(long, value_name = "F")]
    factor: Option<Factor>,
    /// The cloud's name for the node's type, such as p5.48xlarge
    #[arg(long, value_name = "TYPE")]
    instance_type: Option<String>,
    /// A host segment of the node that is to fit into its NICs' page entries; pages of 4Ki where
    /// none are named. May be given several times: all are on the node at once, in any order
    #[arg(long = "segment", value_name = "[NAME=]SIZE[,page=…][,numa=N]", value_parser = segment, allow_hyphen_values = true)]
    segments: Vec<SegmentInput>,
    /// Count software devices (rdma_rxe, siw) as usable
    #[arg(long, conflicts_with_all = ["topology", "gpus", "nics"])]
    allow_soft_rdma: bool,
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
        if self.rank.is_some() && self.output != Form::Env {
            return Err(Failure::input(
                "--rank: only the environment is one rank's; write -o env too, or leave --rank out",
            ));
        }
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
            segments: self.segments.clone(),
        });
        self.check(&plan, node.as_ref())?;
        output::print(match self.output {
            Form::Table => show::table(&plan),
            Form::Env => show::env(&plan, self.rank.map(usize::from))?,
            Form::Yaml => serde_saphyr::to_string(&plan).map_err(Failure::failed)?,
            Form::Json => serde_json::to_string_pretty(&plan).map_err(Failure::failed)? + "\n",
        })?;
        refused(&plan)
    }

    /// The node that is planned for; `None` where only counts are given.
    fn node(&self) -> Result<Option<Node>, Failure> {
        if let Some(file) = &self.topology {
            return described::read(file).map(Some);
        }
        if let Some(root) = &self.root {
            let root =
                Root::open(root).map_err(|finding| Failure::input(format!("--root: {finding}")))?;
            return Ok(Some(read_node(&root, &self.read_options())));
        }
        let is_described = self.cores.is_some()
            || self.gpus.is_some()
            || self.nics.is_some()
            || self.instance_type.is_some();
        Ok((!is_described).then(|| read_node(&Root::host(), &self.read_options())))
    }

    fn read_options(&self) -> ReadOptions {
        ReadOptions {
            allow_soft_rdma: self.allow_soft_rdma,
            instance_type: self.instance_type.clone(),
            ..ReadOptions::default()
        }
    }

    /// What can't be of this node.
    fn check(&self, plan: &Plan, node: Option<&Node>) -> Result<(), Failure> {
        unique(&self.segments)?;
        let each = usize::from(self.gpus_per_rank.get());
        if let Some(gpus) = plan.inputs.gpus.filter(|gpus| each > (*gpus).max(1)) {
            let remedy = match gpus {
                0 => "leave it out: the node has no GPU".to_owned(),
                1 => "write 1: the node has 1 GPU".to_owned(),
                _ => format!("write 1 to {gpus}: the node has {gpus} GPUs"),
            };
            return Err(Failure::input(format!("--gpus-per-rank: {each}; {remedy}")));
        }
        node.map_or(Ok(()), |node| {
            self.segments
                .iter()
                .try_for_each(|segment| is_on(segment, node))
        })
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

fn unique(segments: &[SegmentInput]) -> Result<(), Failure> {
    for (index, segment) in segments.iter().enumerate() {
        let name = &segment.name;
        if segments.iter().take(index).any(|other| other.name == *name) {
            return Err(Failure::input(format!(
                "--segment: two are called {name}; give each a name of its own, such as {name}{}=SIZE",
                index + 1
            )));
        }
    }
    Ok(())
}

/// Whether the node has a segment's NUMA node.
fn is_on(segment: &SegmentInput, node: &Node) -> Result<(), Failure> {
    // Where it is unknown which there are, there may be one.
    let Some(ids) = node.numa_ids() else {
        return Ok(());
    };
    match segment.numa {
        Some(numa) if !ids.contains(&numa) => {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            Err(Failure::input(format!(
                "segments[{}].numa: {numa}: the node has no such NUMA node; use one of: {}, local, interleave",
                segment.name,
                ids.join(", ")
            )))
        }
        _ => Ok(()),
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
        is_page_assumed: !matches!(segment.page, Page::Size(_)),
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
            let is_named = text.contains("Mi") || text.contains("=1Gi,numa");
            assert_eq!(got.is_page_assumed, !is_named, "{text}");
        }
        for text in ["", "kv", "kv=", "1Gi,page=3", "1Gi,pages=2Mi", "kv=1.5"] {
            assert!(segment(text).is_err(), "{text:?}");
        }
    }

    fn p5() -> Node {
        let planted = instances::of("p5.48xlarge").unwrap().planted();
        read_node(&Root::at(planted.path()), &ReadOptions::default())
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
            "kv: 4Ti in pages of 4Ki needs 1073741824 page entries; its 32 NICs have 469762048 left, \
             enough for 1792Gi; pages of 2Mi would fit"
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
            "# cap: 0.95 x 192 cores / 2 ranks = 91.20, rounded\n\
             MC_MAX_CONCURRENT_REG_MR=91\n\
             # The rest differs by rank; ranks are numbered by the PCI addresses of their GPUs. Each\n\
             # takes its own, which `--rank N` prints in force.\n\
             # rank 0 (GPUs 0000:53:00.0 0000:64:00.0 0000:75:00.0 0000:86:00.0):\n\
             # MC_TE_FILTERS={}\n\
             # rank 1 (GPUs 0000:97:00.0 0000:a8:00.0 0000:b9:00.0 0000:ca:00.0):\n\
             # MC_TE_FILTERS={}\n",
            list([79, 96, 113, 130]),
            list([147, 164, 181, 198])
        );
        assert_eq!(show::env(&planned(&node, &[]), None), Ok(want));
        assert_eq!(
            show::env(&planned(&node, &[]), Some(1)),
            Ok(format!(
                "# cap: 0.95 x 192 cores / 2 ranks = 91.20, rounded\n\
                 MC_MAX_CONCURRENT_REG_MR=91\n\
                 # rank 1 (GPUs 0000:97:00.0 0000:a8:00.0 0000:b9:00.0 0000:ca:00.0):\n\
                 MC_TE_FILTERS={}\n",
                list([147, 164, 181, 198])
            ))
        );
        let none = show::env(&planned(&node, &[]), Some(2)).unwrap_err();
        assert_eq!(
            none.message,
            "--rank: 2: the node is planned for 2 ranks; write 0 to 1"
        );

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
            show::env(&plan(&input), None),
            Ok(format!(
                "{unknown_cap}# rank 0 (GPUs 0000:53:00.0):\nMC_TE_FILTERS=rdmap79s0\n"
            ))
        );
        input.devices = Devices::Counts {
            gpus: Some(1),
            nics: Some(0),
        };
        assert_eq!(
            show::env(&plan(&input), None),
            Ok(format!(
                "{unknown_cap}# rank 0: no MC_TE_FILTERS: only counts are known, not which NICs are near: \
                 the node has no NIC to register on\n"
            ))
        );
    }

    /// No reader of such a file may take a name for more than a name.
    #[test]
    fn names_that_a_shell_would_read_are_refused() {
        for name in [
            "x; rm -rf /",
            "x\nPATH=/tmp",
            "$(x)",
            "a,b",
            "a b",
            "'",
            "\u{1b}[31m",
            "",
        ] {
            let mut node = p5();
            node.nics.as_mut().unwrap()[3].name = name.to_owned();
            for rank in [None, Some(0)] {
                let failure = show::env(&planned(&node, &[]), rank).unwrap_err();
                let want = format!("NIC {name:?}: ");
                assert!(failure.message.starts_with(&want), "{}", failure.message);
            }
            let table = show::table(&planned(&node, &[]));
            let steers = |letter: char| letter != '\n' && letter.is_control();
            assert!(!table.contains(steers), "{table}");
        }
    }

    #[test]
    fn what_was_found_is_told_and_steers_nothing() {
        let mut node = p5();
        node.findings = vec![Root::host().finding("sys/x", "is odd\nPATH=/tmp")];
        let plan = planned(&node, &[]);
        assert_eq!(plan.findings, ["/sys/x: is odd\nPATH=/tmp"]);
        let (table, env) = (show::table(&plan), show::env(&plan, None).unwrap());
        assert!(
            table.ends_with("\nfinding: /sys/x: is odd\\nPATH=/tmp\n"),
            "{table}"
        );
        assert!(
            env.ends_with("\n# finding: /sys/x: is odd\\nPATH=/tmp\n"),
            "{env}"
        );
    }

    #[test]
    fn what_the_node_has_not_is_refused() {
        let node = p5();
        let kv = |text: &str| is_on(&segment(text).unwrap(), &node).map_err(|f| f.message);
        assert_eq!(kv("kv=1Gi,numa=1"), Ok(()));
        assert_eq!(
            kv("kv=1Gi,numa=9"),
            Err(
                "segments[kv].numa: 9: the node has no such NUMA node; use one of: 0, 1, local, \
                 interleave"
                    .to_owned()
            )
        );
        let mut node = node;
        node.numa = None;
        assert_eq!(is_on(&segment("kv=1Gi,numa=9").unwrap(), &node), Ok(()));
        node.numa = Some(Vec::new());
        let kv = |text: &str| is_on(&segment(text).unwrap(), &node).map_err(|f| f.message);
        assert_eq!(kv("kv=1Gi,numa=1"), Ok(()), "devices are on it");
        assert!(kv("kv=1Gi,numa=2").is_err());
        (node.gpus, node.nics) = (None, None);
        let is_on = |text: &str| is_on(&segment(text).unwrap(), &node).is_ok();
        assert!(is_on("kv=1Gi,numa=0") && !is_on("kv=1Gi,numa=1"));
        let twice = [segment("1Gi").unwrap(), segment("2Gi").unwrap()];
        assert_eq!(
            unique(&twice).unwrap_err().message,
            "--segment: two are called segment; give each a name of its own, such as segment2=SIZE"
        );
        assert_eq!(unique(&twice[..1]), Ok(()));
    }

    #[test]
    fn a_table_says_it_all() {
        let text = show::table(&planned(&p5(), &["kv=64Gi,page=2Mi,numa=0"]));
        for part in [
            "instance type: p5.48xlarge\n",
            "cap: 91 a rank (0.95 x 192 cores / 2 ranks = 91.20, rounded)\n",
            "factor: 0.95 (the default)\n",
            "cores: 192 (Online)\n",
            "ranks: 2 (8 GPUs, 4 a rank)\n",
            "GPU 0000:86:00.0: below the bridge 0000:78:00.0: 4 usable NICs\n",
            "kv: 64Gi on 16 NICs (the 16 usable NICs of NUMA node 0: 1600 Gbit/s): whole on every \
             NIC: 32768 page entries of 2Mi on each NIC, of 23068672\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }
}
