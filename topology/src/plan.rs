//! The planner: from what a node has to the cap, the cores and the NICs of each rank. It is what no
//! engine can do for itself, since it does not know how many others share the node.
//!
//! The number of ranks is the larger of those bound to the node and what its GPUs have room for, so
//! that it does not matter in which order they arrive. What is unknown stays unknown: there is no
//! 0, which to an engine is *unbounded*.

use std::collections::{BTreeSet, HashSet};
use std::num::{NonZeroU64, NonZeroUsize};

use serde::Serialize;

use crate::budget::{self, Demand, Fit, NicLimits, Refusal, entries};
use crate::catalogue::{CatalogueEntry, NicsPerGpu};
use crate::factor::{DEFAULT_FACTOR, Factor};
use crate::node::{CoreSource, Nic, Node};
use crate::pci::PciAddress;
use crate::rails::{self, Evidence, GpuRails, HostRails, Rails};
use crate::size::{count as some, page_name};
use crate::split::shares;

/// What a plan is made from.
#[derive(Clone, Debug)]
pub struct PlanInput<'a> {
    /// The node's devices.
    pub devices: Devices<'a>,
    /// What is published of the node's type, where it is known.
    pub entry: Option<&'a CatalogueEntry>,
    /// Its hardware threads as the caller knows them, which wins over what was read.
    pub cores: Option<NonZeroUsize>,
    /// GPUs of a rank.
    pub gpus_per_rank: NonZeroUsize,
    /// Ranks that are bound to the node, the ones that are planned for included.
    pub ranks_bound: usize,
    /// The factor that the caller wants.
    pub factor: Option<Factor>,
    /// Host segments that the node is to hold, all at once.
    pub segments: Vec<SegmentInput>,
}

/// What is known of a node's devices.
#[derive(Clone, Copy, Debug)]
pub enum Devices<'a> {
    /// The node as read.
    Node(&'a Node),
    /// Only how many there are; what is `None` is taken from the catalogue.
    Counts {
        /// GPUs.
        gpus: Option<usize>,
        /// NICs that can be used.
        nics: Option<usize>,
    },
}

/// A host segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInput {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The length of a page.
    pub page_bytes: NonZeroU64,
    /// It is taken for want of a better one: which pages it will get is not decided.
    pub is_page_assumed: bool,
    /// Its NUMA node; `None` where it is on several.
    pub numa: Option<u32>,
}

/// What the planner says.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Most registrations in flight of one rank; unknown where the cores or the ranks are.
    pub cap: Option<NonZeroUsize>,
    /// What decided it.
    pub cap_rule: CapRule,
    /// The same in words, with the numbers.
    pub cap_reason: String,
    /// What it was made from.
    pub inputs: Inputs,
    /// Ranks that the node is planned for; unknown where neither GPUs nor ranks are known.
    pub ranks_planned: Option<RankCount>,
    /// Each of them, GPUs given out in the order of their addresses.
    pub ranks: Vec<RankPlan>,
    /// The NICs of each GPU, from which a rank that got other GPUs takes its own; `None` where only
    /// counts are known.
    pub rails: Option<Rails>,
    /// The host segments.
    pub segments: Vec<SegmentPlan>,
    /// What to know before relying on it: of the plan, then what was found while the node was read.
    pub findings: Vec<String>,
}

/// What decided the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum CapRule {
    /// The factor.
    Factor,
    /// Rounding up would have given out more cores than there are: the share of cores.
    CoreShare,
    /// Less than one would be none.
    AtLeastOne,
    /// The cores are unknown: there is no cap.
    UnknownCores,
    /// How many ranks is unknown: there is no cap.
    UnknownRanks,
}

/// All that the plan was made from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inputs {
    /// The instance type, where it is known.
    pub instance_type: Option<String>,
    /// Whether the catalogue has it.
    pub is_catalogued: bool,
    /// The node's hardware threads.
    pub cores: Option<Cores>,
    /// GPUs.
    pub gpus: Option<usize>,
    /// NICs that can be used.
    pub nics: Option<usize>,
    /// GPUs of a rank.
    pub gpus_per_rank: NonZeroUsize,
    /// Ranks that are bound to the node.
    pub ranks_bound: usize,
    /// The factor.
    pub factor: Factor,
    /// What decided it.
    pub factor_rule: FactorRule,
    /// The same in words.
    pub factor_reason: String,
}

/// A node's hardware threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cores {
    /// How many.
    pub count: NonZeroUsize,
    /// Where the number comes from.
    pub source: CoresFrom,
}

/// Where the number of cores comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum CoresFrom {
    /// The caller.
    Caller,
    /// What the kubelet says pods may allocate.
    Allocatable,
    /// The cpuset of the kubepods cgroup.
    KubepodsCpuset,
    /// The CPUs that are online.
    Online,
    /// What is published of the instance type.
    Catalogue,
}

/// What decided the factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum FactorRule {
    /// The caller.
    Caller,
    /// The instance type.
    InstanceType,
    /// Neither: [`DEFAULT_FACTOR`].
    Default,
}

/// How many ranks, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RankCount {
    /// How many.
    pub count: NonZeroUsize,
    /// What decided it.
    pub rule: RankRule,
    /// The same in words.
    pub reason: String,
}

/// What decided how many ranks there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum RankRule {
    /// The GPUs have room for that many.
    Gpus,
    /// That many are bound, more than the GPUs have room for.
    Bound,
    /// None is bound and there is no GPU: the one that is planned for.
    AtLeastOne,
}

/// One rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RankPlan {
    /// Its number.
    pub rank: usize,
    /// Its GPUs; none where it has none, or where only counts are known.
    pub gpus: Vec<PciAddress>,
    /// Its NICs; unknown where only counts are known.
    pub nics: Option<Vec<String>>,
    /// How many NICs.
    pub nic_count: Option<usize>,
    /// What says that they are near, of its GPUs the one that knows least; unknown where only
    /// counts are known.
    pub evidence: Option<Evidence>,
    /// The same in words.
    pub reason: String,
    /// Its share of the cores, at least 1.
    pub core_share: Option<NonZeroUsize>,
}

/// One host segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SegmentPlan {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The length of a page.
    pub page_bytes: NonZeroU64,
    /// It was assumed.
    pub is_page_assumed: bool,
    /// Its NICs; unknown where only counts are known.
    pub rails: Option<HostRails>,
    /// How many NICs.
    pub nic_count: Option<usize>,
    /// How it fits; `None` where it does not, or the NICs are unknown, or there are none.
    pub fit: Option<Fit>,
    /// Why it does not.
    pub refusal: Option<Refusal>,
    /// What is to be said of it.
    pub reason: String,
}

/// Plans a node.
#[must_use]
pub fn plan(input: &PlanInput<'_>) -> Plan {
    let inputs = inputs(input);
    let ranks_planned = rank_count(&inputs);
    let count = ranks_planned.as_ref().map(|ranks| ranks.count);
    let (cap, cap_rule, cap_reason) = match (&inputs.cores, count) {
        (None, _) => {
            let reason = "the node's cores are unknown: no cap is given".to_owned();
            (None, CapRule::UnknownCores, reason)
        }
        (_, None) => {
            let reason = "neither the GPUs nor the ranks are known: no cap is given".to_owned();
            (None, CapRule::UnknownRanks, reason)
        }
        (Some(cores), Some(ranks)) => {
            let (cap, rule) = cap(cores.count, ranks, inputs.factor);
            let reason = cap_words(inputs.factor, cores.count, ranks, rule);
            (Some(cap), rule, reason)
        }
    };
    let rails = match input.devices {
        Devices::Node(node) if is_listed(node) => Some(rails::rails(node, input.entry)),
        Devices::Node(_) | Devices::Counts { .. } => None,
    };
    let of_rails = rails.iter().flat_map(|rails| &rails.findings);
    let of_rails: Vec<_> = of_rails.map(ToString::to_string).collect();
    let ranks = count.map_or_else(Vec::new, |count| {
        ranks(input, &inputs, rails.as_ref(), count)
    });
    Plan {
        cap,
        cap_rule,
        cap_reason,
        findings: findings(input, &inputs, count)
            .into_iter()
            .chain(of_rails)
            .collect(),
        ranks_planned,
        ranks,
        segments: segments(input, inputs.nics),
        rails,
        inputs,
    }
}

/// What the numbers do not say of themselves.
fn findings(input: &PlanInput<'_>, inputs: &Inputs, ranks: Option<NonZeroUsize>) -> Vec<String> {
    let mut said = Vec::new();
    if let (Some(cores), Some(ranks)) = (inputs.cores, ranks)
        && ranks > cores.count
    {
        said.push(format!(
            "{} on {}: no rank has a core of its own, so that they contend whatever the cap",
            some(ranks.get(), "rank"),
            some(cores.count.get(), "core")
        ));
    }
    match input.devices {
        Devices::Node(node) => said.extend(node.findings.iter().map(ToString::to_string)),
        Devices::Counts { .. } => {
            let on_a_node = |segment: &&SegmentInput| segment.numa.is_some();
            for segment in input.segments.iter().filter(on_a_node) {
                said.push(format!(
                    "segment {}: which NICs are on its NUMA node is unknown, as only counts are",
                    segment.name
                ));
            }
        }
    }
    said
}

/// `clamp(round(factor x cores / ranks), 1, cores / ranks)`, at least 1: the caps of all ranks are
/// never more than the cores, unless there are more ranks than cores.
#[must_use]
pub fn cap(cores: NonZeroUsize, ranks: NonZeroUsize, factor: Factor) -> (NonZeroUsize, CapRule) {
    let share = cores.get() / ranks.get();
    let rounded = (factor.get() * cores.get() as f64 / ranks.get() as f64).round() as usize;
    match NonZeroUsize::new(rounded.min(share)) {
        None => (NonZeroUsize::MIN, CapRule::AtLeastOne),
        Some(cap) if rounded > share => (cap, CapRule::CoreShare),
        Some(cap) => (cap, CapRule::Factor),
    }
}

fn cap_words(factor: Factor, cores: NonZeroUsize, ranks: NonZeroUsize, rule: CapRule) -> String {
    let exact = factor.get() * cores.get() as f64 / ranks.get() as f64;
    let why = match rule {
        CapRule::CoreShare => ", not rounded up: all ranks together would exceed the cores",
        CapRule::AtLeastOne => ", at least 1",
        CapRule::Factor => ", rounded",
        CapRule::UnknownCores | CapRule::UnknownRanks => "",
    };
    format!(
        "{factor} x {} / {} = {exact:.2}{why}",
        some(cores.get(), "core"),
        some(ranks.get(), "rank")
    )
}

fn inputs(input: &PlanInput<'_>) -> Inputs {
    let entry = input.entry;
    let (gpus, nics, cores) = match input.devices {
        Devices::Node(node) => {
            let usable = |nics: &Vec<Nic>| nics.iter().filter(|nic| nic.is_usable()).count();
            (
                node.gpus.as_ref().map(Vec::len),
                node.nics.as_ref().map(usable),
                read_cores(node),
            )
        }
        Devices::Counts { gpus, nics } => (
            gpus.or(entry.and_then(|entry| entry.gpus)),
            nics.or(entry.and_then(|entry| entry.nics)),
            None,
        ),
    };
    let given = input.cores.map(|count| (count, CoresFrom::Caller));
    let published = || Some((entry?.vcpus?, CoresFrom::Catalogue));
    let cores = given.or(cores).or_else(published);
    let (factor, factor_rule, factor_reason) = factor(input);
    let told = match input.devices {
        Devices::Node(node) => node.instance_type.as_ref(),
        Devices::Counts { .. } => None,
    };
    let instance_type = entry.map(|entry| &entry.instance_type).or(told);
    Inputs {
        instance_type: instance_type.cloned(),
        is_catalogued: entry.is_some(),
        cores: cores.map(|(count, source)| Cores { count, source }),
        gpus,
        nics,
        gpus_per_rank: input.gpus_per_rank,
        ranks_bound: input.ranks_bound,
        factor,
        factor_rule,
        factor_reason,
    }
}

/// Whether it is known which devices the node has.
fn is_listed(node: &Node) -> bool {
    node.gpus.is_some() && node.nics.is_some()
}

fn read_cores(node: &Node) -> Option<(NonZeroUsize, CoresFrom)> {
    let cores = node.cores?;
    let source = match cores.source {
        CoreSource::Allocatable => CoresFrom::Allocatable,
        CoreSource::KubepodsCpuset => CoresFrom::KubepodsCpuset,
        CoreSource::Online => CoresFrom::Online,
    };
    Some((cores.count, source))
}

fn factor(input: &PlanInput<'_>) -> (Factor, FactorRule, String) {
    if let Some(factor) = input.factor {
        return (factor, FactorRule::Caller, "given".to_owned());
    }
    match input
        .entry
        .and_then(|entry| Some((entry, entry.factor.as_ref()?)))
    {
        Some((entry, own)) => {
            let reason = format!("{}: {}", entry.instance_type, own.why);
            (own.factor, FactorRule::InstanceType, reason)
        }
        None => (
            DEFAULT_FACTOR,
            FactorRule::Default,
            "the default".to_owned(),
        ),
    }
}

fn rank_count(inputs: &Inputs) -> Option<RankCount> {
    let (bound, each) = (inputs.ranks_bound, inputs.gpus_per_rank);
    let by_gpus = inputs.gpus.map(|gpus| gpus.div_ceil(each.get()));
    let room = inputs.gpus.map_or_else(
        || "an unknown number of GPUs".to_owned(),
        |gpus| format!("{}, {each} a rank", some(gpus, "GPU")),
    );
    let are = if bound == 1 { "is" } else { "are" };
    let ranks = |count, rule, reason| RankCount {
        count,
        rule,
        reason,
    };
    let by_gpus = by_gpus.filter(|by_gpus| *by_gpus >= bound);
    match (
        by_gpus.and_then(NonZeroUsize::new),
        NonZeroUsize::new(bound),
    ) {
        (Some(count), _) => {
            let reason = match bound {
                0 => room,
                _ => format!("{room}; no fewer for the {bound} that {are} bound"),
            };
            Some(ranks(count, RankRule::Gpus, reason))
        }
        (None, Some(count)) => {
            let reason = format!("{bound} {are} bound; {room}");
            Some(ranks(count, RankRule::Bound, reason))
        }
        (None, None) if inputs.gpus.is_none() => None,
        (None, None) => {
            let reason = "no GPU, and no rank bound: one is planned for".to_owned();
            Some(ranks(NonZeroUsize::MIN, RankRule::AtLeastOne, reason))
        }
    }
}

fn ranks(
    input: &PlanInput<'_>,
    inputs: &Inputs,
    rails: Option<&Rails>,
    count: NonZeroUsize,
) -> Vec<RankPlan> {
    let share = |cores: Cores| NonZeroUsize::new(cores.count.get() / count.get());
    let core_share = inputs
        .cores
        .map(|cores| share(cores).unwrap_or(NonZeroUsize::MIN));
    let mut gpus = rails.map(|rails| rails.gpus.chunks(input.gpus_per_rank.get()));
    let rank = |rank| {
        let own: &[GpuRails] = gpus.as_mut().and_then(Iterator::next).unwrap_or_default();
        let near = near(input, own);
        let nics = near.as_ref().map(|near| near.nics.clone());
        let counted = counted_nics(input, inputs, rank);
        RankPlan {
            rank,
            gpus: own.iter().map(|rails| rails.gpu).collect(),
            nic_count: match &nics {
                Some(nics) => Some(nics.len()),
                None => counted.as_ref().map(|counted| counted.nics),
            },
            nics,
            evidence: near.as_ref().map(|near| near.evidence),
            reason: match (near, counted) {
                (Some(near), _) => near.reason,
                (None, Some(counted)) => format!("{UNNAMED}: {}", counted.reason),
                (None, None) => UNNAMED.to_owned(),
            },
            core_share,
        }
    };
    (0..count.get()).map(rank).collect()
}

/// The NICs of a rank.
struct Near {
    nics: Vec<String>,
    evidence: Evidence,
    reason: String,
}

/// The NICs of some GPUs together, or the host's where there is no GPU; `None` where only counts
/// are known.
fn near(input: &PlanInput<'_>, gpus: &[GpuRails]) -> Option<Near> {
    let Devices::Node(node) = input.devices else {
        return None;
    };
    if !is_listed(node) {
        return None;
    }
    // The first of the weakest.
    if let Some(weakest) = gpus.iter().rev().max_by_key(|gpu| gpu.evidence) {
        return Some(Near {
            nics: rails::union(gpus),
            evidence: weakest.evidence,
            reason: format!("GPU {}: {}", weakest.gpu, weakest.reason),
        });
    }
    let host = rails::host_rails(node, None);
    Some(Near {
        nics: host.nics,
        evidence: host.evidence,
        reason: format!("it has no GPU; {}", host.reason),
    })
}

/// What is said of a rank where only counts are known.
const UNNAMED: &str = "only counts are known, not which NICs are near";

/// How many NICs a rank has, by counts alone.
struct Counted {
    nics: usize,
    reason: String,
}

/// How many NICs a rank has where only counts are known: what is published for each of its GPUs, where
/// that adds up to no more than there are, and the caller did not count them; else a part of all.
fn counted_nics(input: &PlanInput<'_>, inputs: &Inputs, rank: usize) -> Option<Counted> {
    let (gpus, all) = (inputs.gpus?, inputs.nics?);
    if all == 0 {
        return Some(Counted {
            nics: 0,
            reason: "the node has no NIC to register on".to_owned(),
        });
    }
    let each = input.gpus_per_rank.get();
    let first = rank.saturating_mul(each).min(gpus);
    let own = first..first.saturating_add(each).min(gpus);
    let every = |why: &str| Counted {
        nics: all,
        reason: format!("all {all}, {why}"),
    };
    if own.is_empty() {
        return Some(every("as it has no GPU"));
    }
    let published = input.entry.and_then(|entry| entry.nics_per_gpu);
    if published == Some(NicsPerGpu::AllShare) {
        return Some(every("which every GPU uses"));
    }
    let is_given = matches!(input.devices, Devices::Counts { nics: Some(_), .. });
    let of = |gpus: usize| match published {
        Some(NicsPerGpu::Own(nics)) => Some(gpus.saturating_mul(nics.get())),
        Some(NicsPerGpu::Ratio { nics, gpus: of }) => {
            Some(gpus.saturating_mul(nics.get()).div_ceil(of.get()))
        }
        _ => None,
    };
    if !is_given && of(gpus).is_some_and(|sum| sum <= all) {
        let reason = "as published of the instance type".to_owned();
        return of(own.len()).map(|nics| Counted { nics, reason });
    }
    if !is_given && matches!(published, None | Some(NicsPerGpu::Shared)) {
        return None;
    }
    let (indices, taken): (Vec<usize>, _) = ((0..all).collect(), own);
    let shares = shares(&indices, gpus).skip(taken.start).take(taken.len());
    let nics: BTreeSet<usize> = shares.flatten().copied().collect();
    Some(Counted {
        nics: nics.len(),
        reason: match gpus {
            1 => format!("all {all}, for the one GPU"),
            _ => format!("{all} divided among {gpus} GPUs"),
        },
    })
}

/// The host segments, all of which are on the node at once.
fn segments(input: &PlanInput<'_>, counted: Option<usize>) -> Vec<SegmentPlan> {
    let node = match input.devices {
        Devices::Node(node) => Some(node).filter(|node| node.nics.is_some()),
        Devices::Counts { .. } => None,
    };
    let limits = limits(input, node, counted);
    let places: Vec<Place> = input
        .segments
        .iter()
        .map(|segment| match node {
            Some(node) => Place::of(node, segment.numa),
            None => Place::unnamed(counted),
        })
        .collect();
    let pairs = || input.segments.iter().zip(&places);
    let is_placed = |(_, place): &(&SegmentInput, &Place)| !place.nics.is_empty();
    let demands = pairs().filter(is_placed).map(|(segment, place)| Demand {
        name: &segment.name,
        bytes: segment.bytes,
        page_bytes: segment.page_bytes,
        nics: &place.nics,
    });
    let mut fits = budget::fit(&limits, &demands.collect::<Vec<_>>()).into_iter();
    let planned = pairs().map(|pair| {
        let fit = if is_placed(&pair) { fits.next() } else { None };
        let (segment, place) = pair;
        segment_plan(segment, place, &limits, fit)
    });
    planned.collect()
}

/// What each NIC can take: of a node that was read all of them, as it lists them.
fn limits(input: &PlanInput<'_>, node: Option<&Node>, counted: Option<usize>) -> Vec<NicLimits> {
    if let Some(node) = node {
        let drivers = node.known_nics().iter().map(|nic| nic.driver.as_deref());
        return drivers.map(NicLimits::of_driver).collect();
    }
    let driver = input.entry.filter(|entry| entry.has_efa()).map(|_| "efa");
    vec![NicLimits::of_driver(driver); counted.unwrap_or_default()]
}

/// The NICs of a segment.
struct Place {
    rails: Option<HostRails>,
    /// How many; `None` where that is unknown.
    count: Option<usize>,
    /// Which of all, ascending.
    nics: Vec<usize>,
}

impl Place {
    fn of(node: &Node, numa: Option<u32>) -> Self {
        let rails = rails::host_rails(node, numa);
        let names: HashSet<&str> = rails.nics.iter().map(String::as_str).collect();
        let all = node.known_nics().iter().enumerate();
        let nics = all.filter(|(_, nic)| names.contains(nic.name.as_str()));
        Self {
            nics: nics.map(|(index, _)| index).collect(),
            count: Some(rails.nics.len()),
            rails: Some(rails),
        }
    }

    /// Where no NIC has a name: on all of them.
    fn unnamed(count: Option<usize>) -> Self {
        Self {
            rails: None,
            count,
            nics: (0..count.unwrap_or_default()).collect(),
        }
    }
}

fn segment_plan(
    segment: &SegmentInput,
    place: &Place,
    limits: &[NicLimits],
    fitted: Option<Result<Fit, Refusal>>,
) -> SegmentPlan {
    let reason = match (&fitted, place.count) {
        (None, None) => "how many NICs there are is unknown: not checked".to_owned(),
        (None, Some(_)) => "no NIC to register on".to_owned(),
        (Some(Err(refusal)), _) => refusal.to_string(),
        (Some(Ok(fit)), _) => {
            let limits = place.nics.iter().filter_map(|nic| limits.get(*nic));
            fit_words(
                segment,
                fit,
                limits.copied().fold(NicLimits::default(), NicLimits::and),
            )
        }
    };
    let reason = match segment.is_page_assumed {
        false => reason,
        true => format!(
            "{reason}; pages of {} are assumed, the smallest: name the page size to plan with it",
            page_name(segment.page_bytes.get())
        ),
    };
    let (fit, refusal) = match fitted {
        None => (None, None),
        Some(Ok(fit)) => (Some(fit), None),
        Some(Err(refusal)) => (None, Some(refusal)),
    };
    SegmentPlan {
        name: segment.name.clone(),
        bytes: segment.bytes,
        page_bytes: segment.page_bytes,
        is_page_assumed: segment.is_page_assumed,
        rails: place.rails.clone(),
        nic_count: place.count,
        fit,
        refusal,
        reason,
    }
}

fn fit_words(segment: &SegmentInput, fit: &Fit, limits: NicLimits) -> String {
    let pages = entries(fit.pages_per_nic(segment.page_bytes));
    let page = page_name(segment.page_bytes.get());
    let budget = limits.page_entries.map_or_else(
        || "no limit known for these NICs".to_owned(),
        |entries| format!("of {entries}"),
    );
    match fit {
        Fit::EveryNic(_) => {
            format!("whole on every NIC: {pages} of {page} on each NIC, {budget}")
        }
        Fit::Partitioned(_) => format!(
            "in parts, each on a NIC of its own: at most {pages} of {page} on a NIC, {budget}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{EFA_PAGE_ENTRIES, Stretch};
    use crate::catalogue::Catalogue;
    use crate::made;
    use crate::node::NodeCores;
    use proptest::prelude::*;

    fn count(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).unwrap()
    }

    fn counted(cores: Option<usize>, gpus: Option<usize>) -> PlanInput<'static> {
        PlanInput {
            devices: Devices::Counts { gpus, nics: None },
            entry: None,
            cores: cores.map(count),
            gpus_per_rank: NonZeroUsize::MIN,
            ranks_bound: 0,
            factor: None,
            segments: Vec::new(),
        }
    }

    /// Two GPUs with two NICs each, and a GPU-less host bridge with one, all on NUMA node 0.
    fn node() -> Node {
        let gpu = |bus: &str, root| made::gpu(&format!("{bus}:00.0"), root, &["1:0.0"], Some(0));
        let nic = |name, bus: &str, root| {
            made::nic(name, &format!("{bus}:00.0"), root, &["1:0.0"], Some(0))
        };
        let mut node = made::node(
            &[gpu("10", "a"), gpu("20", "b")],
            &[
                nic("n1", "11", "a"),
                nic("n2", "12", "a"),
                nic("n3", "21", "b"),
                nic("n4", "22", "b"),
                nic("n5", "30", "c"),
            ],
        );
        node.cores = Some(NodeCores {
            count: count(64),
            source: CoreSource::KubepodsCpuset,
        });
        node
    }

    fn of(node: &Node) -> PlanInput<'_> {
        PlanInput {
            devices: Devices::Node(node),
            ..counted(None, None)
        }
    }

    fn segment(name: &str, bytes: u64) -> SegmentInput {
        SegmentInput {
            name: name.to_owned(),
            bytes,
            page_bytes: NonZeroU64::new(4096).unwrap(),
            is_page_assumed: false,
            numa: Some(0),
        }
    }

    #[test]
    fn caps() {
        use CapRule::{AtLeastOne, CoreShare, Factor as ByFactor};
        for (cores, ranks, factor, want, rule) in [
            (192, 8, 0.75, 18, ByFactor),
            (192, 4, 0.75, 36, ByFactor),
            (64, 8, 0.75, 6, ByFactor),
            (192, 8, 0.33, 8, ByFactor),
            (192, 8, 1.0, 24, ByFactor),
            (10, 4, 0.75, 2, ByFactor),
            (3, 2, 1.0, 1, CoreShare),
            (7, 4, 1.0, 1, CoreShare),
            (2, 8, 0.75, 1, AtLeastOne),
            (4, 4, 0.3, 1, AtLeastOne),
            (1, 1, 1.0, 1, ByFactor),
        ] {
            let got = cap(count(cores), count(ranks), Factor::new(factor).unwrap());
            assert_eq!(got, (count(want), rule), "{factor} x {cores} / {ranks}");
        }
    }

    #[test]
    fn how_many_ranks() {
        use RankRule::{AtLeastOne, Bound, Gpus};
        for (gpus, each, bound, want) in [
            (Some(8), 1, 0, Some((8, Gpus))),
            (Some(8), 1, 8, Some((8, Gpus))),
            (Some(8), 1, 3, Some((8, Gpus))),
            (Some(8), 1, 9, Some((9, Bound))),
            (Some(8), 3, 1, Some((3, Gpus))),
            (Some(8), 16, 0, Some((1, Gpus))),
            (Some(0), 1, 0, Some((1, AtLeastOne))),
            (Some(0), 1, 2, Some((2, Bound))),
            (None, 1, 4, Some((4, Bound))),
            (None, 1, 0, None),
        ] {
            let plan = plan(&PlanInput {
                gpus_per_rank: count(each),
                ranks_bound: bound,
                ..counted(Some(64), gpus)
            });
            let got = plan
                .ranks_planned
                .map(|ranks| (ranks.count.get(), ranks.rule));
            assert_eq!(got, want, "{gpus:?} GPUs, {each} a rank, {bound} bound");
            assert_eq!(plan.ranks.len(), want.map_or(0, |(ranks, _)| ranks));
            assert_eq!(plan.cap.is_some(), want.is_some());
        }
    }

    #[test]
    fn everything_is_said() {
        let said = plan(&counted(Some(192), Some(8)));
        assert_eq!(said.cap, NonZeroUsize::new(23));
        assert_eq!(
            said.cap_reason,
            "0.95 x 192 cores / 8 ranks = 22.80, rounded"
        );
        assert_eq!(said.ranks_planned.unwrap().reason, "8 GPUs, 1 a rank");
        assert_eq!(said.inputs.factor_rule, FactorRule::Default);
        assert_eq!(said.inputs.cores.unwrap().source, CoresFrom::Caller);
        assert_eq!(said.rails, None);
        let rank = &said.ranks[7];
        assert_eq!((rank.rank, rank.core_share), (7, NonZeroUsize::new(24)));
        assert_eq!((&rank.nics, rank.nic_count), (&None, None));
        assert_eq!(rank.evidence, None);

        let fewer = plan(&PlanInput {
            ranks_bound: 4,
            ..counted(Some(192), Some(8))
        });
        assert_eq!(
            fewer.ranks_planned.unwrap().reason,
            "8 GPUs, 1 a rank; no fewer for the 4 that are bound"
        );
        let bound = plan(&PlanInput {
            ranks_bound: 5,
            ..counted(Some(3), None)
        });
        assert_eq!(
            bound.cap_reason,
            "0.95 x 3 cores / 5 ranks = 0.57, at least 1"
        );
        assert_eq!(
            bound.ranks_planned.unwrap().reason,
            "5 are bound; an unknown number of GPUs"
        );
        assert_eq!(bound.ranks[0].core_share, NonZeroUsize::new(1));
    }

    #[test]
    fn one_is_said_as_one() {
        let one = plan(&PlanInput {
            ranks_bound: 1,
            segments: vec![segment("kv", 4096)],
            ..counted(Some(1), Some(1))
        });
        let reason = "1 GPU, 1 a rank; no fewer for the 1 that is bound";
        assert_eq!(one.ranks_planned.unwrap().reason, reason);
        assert_eq!(one.cap_reason, "0.95 x 1 core / 1 rank = 0.95, rounded");
        let bound = plan(&PlanInput {
            ranks_bound: 1,
            ..counted(Some(1), Some(0))
        });
        assert_eq!(
            bound.ranks_planned.unwrap().reason,
            "1 is bound; 0 GPUs, 1 a rank"
        );
        let node = node();
        let segment = &plan(&PlanInput {
            segments: vec![segment("kv", 4096)],
            ..of(&node)
        })
        .segments[0];
        assert_eq!(
            segment.reason,
            "whole on every NIC: 1 page entry of 4Ki on each NIC, of 23068672"
        );
    }

    #[test]
    fn unknown_is_never_a_number() {
        let no_cores = plan(&counted(None, Some(8)));
        assert_eq!(
            (no_cores.cap, no_cores.cap_rule),
            (None, CapRule::UnknownCores)
        );
        assert_eq!(
            no_cores.cap_reason,
            "the node's cores are unknown: no cap is given"
        );
        assert_eq!(no_cores.ranks.len(), 8);
        assert_eq!(no_cores.ranks[0].core_share, None);
        let no_ranks = plan(&counted(Some(8), None));
        assert_eq!(
            (no_ranks.cap, no_ranks.cap_rule),
            (None, CapRule::UnknownRanks)
        );
        let json = serde_json::to_value(&no_cores).unwrap();
        assert!(json["cap"].is_null());
        assert!(json["inputs"]["cores"].is_null() && json["inputs"]["nics"].is_null());
    }

    #[test]
    fn the_catalogue_fills_what_is_not_given() {
        let published = Catalogue::published();
        for (name, cap, ranks, nics, rule) in [
            ("p5.48xlarge", Some(23), 8, Some(4), FactorRule::Default),
            ("p5en.48xlarge", Some(23), 8, Some(2), FactorRule::Default),
            ("p4d.24xlarge", Some(11), 8, Some(1), FactorRule::Default),
            (
                "p6-b300.48xlarge",
                Some(8),
                8,
                Some(2),
                FactorRule::InstanceType,
            ),
            ("g5.48xlarge", Some(23), 8, Some(1), FactorRule::Default),
            ("g6e.48xlarge", Some(23), 8, None, FactorRule::Default),
            ("c5n.18xlarge", Some(68), 1, Some(1), FactorRule::Default),
            ("a3-ultragpu-8g", None, 8, Some(1), FactorRule::Default),
        ] {
            let plan = plan(&PlanInput {
                entry: published.entry(name),
                ..counted(None, None)
            });
            assert_eq!(plan.cap.map(NonZeroUsize::get), cap, "{name}");
            assert_eq!(plan.ranks.len(), ranks, "{name}");
            assert_eq!(plan.ranks[0].nic_count, nics, "{name}");
            assert_eq!(plan.inputs.factor_rule, rule, "{name}");
            let source = plan.inputs.cores.map(|cores| cores.source);
            assert_eq!(source, cap.map(|_| CoresFrom::Catalogue), "{name}");
        }
        let given = plan(&PlanInput {
            entry: published.entry("p6-b300.48xlarge"),
            factor: Factor::new(1.0),
            gpus_per_rank: count(2),
            ..counted(Some(64), Some(3))
        });
        assert_eq!(given.cap, NonZeroUsize::new(32));
        assert_eq!(given.inputs.factor_rule, FactorRule::Caller);
        let nics: Vec<_> = given.ranks.iter().map(|rank| rank.nic_count).collect();
        assert_eq!(nics, [Some(4), Some(2)]);
    }

    #[test]
    fn ranks_of_a_node() {
        let mut node = node();
        node.instance_type = Some("other.type".to_owned());
        let two = plan(&of(&node));
        assert_eq!(two.inputs.instance_type.as_deref(), Some("other.type"));
        assert!(!two.inputs.is_catalogued);
        assert_eq!(two.inputs.cores.unwrap().source, CoresFrom::KubepodsCpuset);
        assert_eq!((two.inputs.gpus, two.inputs.nics), (Some(2), Some(5)));
        assert_eq!(two.cap, NonZeroUsize::new(30));
        let ranks: Vec<_> = two
            .ranks
            .iter()
            .map(|rank| (rank.gpus[0].bus, rank.nics.clone().unwrap().join(",")))
            .collect();
        assert_eq!(
            ranks,
            [(0x10, "n1,n2".to_owned()), (0x20, "n3,n4".to_owned())]
        );

        let one = plan(&PlanInput {
            gpus_per_rank: count(2),
            ..of(&node)
        });
        assert_eq!(one.ranks.len(), 1);
        assert_eq!(one.ranks[0].gpus.len(), 2);
        assert_eq!(
            one.ranks[0].reason,
            "GPU 0000:10:00.0: below the bridge 0000:01:00.0: 2 usable NICs"
        );
        assert_eq!(
            one.ranks[0].nics.as_deref().unwrap(),
            ["n1", "n2", "n3", "n4"]
        );

        let more = plan(&PlanInput {
            ranks_bound: 3,
            cores: NonZeroUsize::new(10),
            ..of(&node)
        });
        assert_eq!(more.inputs.cores.unwrap().source, CoresFrom::Caller);
        assert_eq!(more.ranks[2].gpus, []);
        assert_eq!(more.ranks[2].nic_count, Some(5), "those of the host");
        assert_eq!(more.ranks[1].evidence, Some(Evidence::SameSwitch));
        assert_eq!(more.ranks[2].evidence, Some(Evidence::AllNics));
        assert_eq!(
            more.ranks[2].reason,
            "it has no GPU; the memory is on no single NUMA node: 5 usable NICs"
        );
    }

    #[test]
    fn counts_that_are_given_win_over_what_is_published() {
        let published = Catalogue::published();
        let of = |name: Option<&str>, gpus, nics, each| {
            let plan = plan(&PlanInput {
                devices: Devices::Counts { gpus, nics },
                entry: name.and_then(|name| published.entry(name)),
                gpus_per_rank: count(each),
                ..counted(Some(64), None)
            });
            let nics = plan.ranks.iter().map(|rank| rank.nic_count);
            nics.collect::<Option<Vec<_>>>()
        };
        let p5 = Some("p5.48xlarge");
        for (name, gpus, nics, each, want) in [
            (None, Some(8), Some(32), 4, Some(vec![16, 16])),
            (None, Some(2), Some(5), 1, Some(vec![3, 2])),
            (None, Some(4), Some(1), 2, Some(vec![1, 1])),
            (None, Some(2), Some(0), 1, Some(vec![0, 0])),
            (None, Some(2), None, 1, None),
            (p5, None, Some(16), 4, Some(vec![8, 8])),
            (p5, Some(2), None, 1, Some(vec![4, 4])),
            (p5, Some(16), None, 8, Some(vec![16, 16])),
            (Some("g6e.48xlarge"), None, None, 4, None),
            (Some("g6e.48xlarge"), None, Some(4), 4, Some(vec![2, 2])),
            (Some("g5.48xlarge"), None, Some(2), 4, Some(vec![2, 2])),
        ] {
            assert_eq!(
                of(name, gpus, nics, each),
                want,
                "{name:?} {gpus:?} {nics:?}"
            );
        }
        let plan = plan(&PlanInput {
            devices: Devices::Counts {
                gpus: Some(2),
                nics: Some(6),
            },
            ..counted(Some(64), None)
        });
        assert_eq!(
            plan.ranks[0].reason,
            "only counts are known, not which NICs are near: 6 divided among 2 GPUs"
        );
    }

    #[test]
    fn what_to_know_before_relying_on_it_is_found() {
        let crowded = plan(&PlanInput {
            ranks_bound: 5,
            segments: vec![segment("kv", 4096)],
            ..counted(Some(4), None)
        });
        assert_eq!(
            crowded.findings,
            [
                "5 ranks on 4 cores: no rank has a core of its own, so that they contend whatever \
                 the cap",
                "segment kv: which NICs are on its NUMA node is unknown, as only counts are",
            ]
        );
        assert_eq!(plan(&counted(Some(8), Some(8))).findings, [""; 0]);
        let mut node = node();
        node.findings = vec![crate::Root::host().finding("sys/x", "is odd")];
        assert_eq!(plan(&of(&node)).findings, ["/sys/x: is odd"]);
    }

    #[test]
    fn an_assumed_page_is_told() {
        let kv = SegmentInput {
            is_page_assumed: true,
            ..segment("kv", 4096)
        };
        let plan = plan(&PlanInput {
            segments: vec![kv],
            ..of(&node())
        });
        assert!(plan.segments[0].is_page_assumed);
        let reason = &plan.segments[0].reason;
        let told = "; pages of 4Ki are assumed, the smallest: name the page size to plan with it";
        assert!(reason.ends_with(told), "{reason}");
    }

    #[test]
    fn segments_share_the_entries_of_a_nic() {
        let node = node();
        let gib = 1_u64 << 30;
        let plan = plan(&PlanInput {
            segments: vec![
                segment("kv", 80 * gib),
                segment("index", 10 * gib),
                segment("more", 40 * gib),
                segment("most", 400 * gib),
            ],
            ..of(&node)
        });
        let reasons: Vec<&str> = plan
            .segments
            .iter()
            .map(|one| one.reason.as_str())
            .collect();
        assert_eq!(
            reasons,
            [
                "in parts, each on a NIC of its own: at most 4194304 page entries of 4Ki on a NIC, of \
                 23068672",
                "whole on every NIC: 2621440 page entries of 4Ki on each NIC, of 23068672",
                "whole on every NIC: 10485760 page entries of 4Ki on each NIC, of 23068672",
                "400Gi in pages of 4Ki needs 104857600 page entries; its 5 NICs have 81264640 left, \
                 enough for 310Gi; pages of 2Mi would fit",
            ]
        );
        let Some(Fit::Partitioned(parts)) = &plan.segments[0].fit else {
            panic!("{:?}", plan.segments[0]);
        };
        let last = Stretch {
            offset: 64 * gib,
            bytes: 16 * gib,
            chunk_bytes: 16 * gib,
            chunks: 1,
        };
        assert_eq!((parts.len(), parts[4]), (5, last));
        assert_eq!(plan.segments[3].fit, None);
        assert!(plan.segments[3].refusal.is_some());
        let rails = plan.segments[0].rails.as_ref().unwrap();
        assert_eq!(rails.nics, ["n1", "n2", "n3", "n4", "n5"]);
    }

    /// A segment that fills the NICs of one NUMA node takes nothing of the others.
    #[test]
    fn segments_of_other_numa_nodes_have_entries_of_their_own() {
        let mut node = node();
        for nic in node.nics.iter_mut().flatten().skip(2) {
            nic.place.as_mut().unwrap().numa = Some(1);
        }
        let gib = 1_u64 << 30;
        let everywhere = SegmentInput {
            numa: None,
            ..segment("b", gib)
        };
        let (full, page) = (segment("a", 2 * 88 * gib), segment("c", 4096));
        let plans = |segments: [&SegmentInput; 2]| {
            let segments = segments.map(SegmentInput::clone).to_vec();
            let planned = plan(&PlanInput {
                segments,
                ..of(&node)
            });
            let mut found: Vec<_> = planned
                .segments
                .into_iter()
                .map(|segment| (segment.name, segment.fit, segment.refusal))
                .collect();
            found.sort_by(|a, b| a.0.cmp(&b.0));
            found
        };
        for (other, is_refused) in [(&everywhere, false), (&page, true)] {
            let found = plans([&full, other]);
            assert_eq!(found, plans([other, &full]));
            assert_eq!(found[0].2.is_some(), is_refused, "{found:?}");
            assert_eq!(found[1].2, None);
        }
    }

    /// What could not be listed is not 0: no cap is computed from it, and nothing is checked.
    #[test]
    fn unlisted_devices_are_unknown() {
        let (mut no_gpus, mut no_nics) = (node(), node());
        no_gpus.gpus = None;
        no_nics.nics = None;
        let with_segment = |node| PlanInput {
            segments: vec![segment("kv", 1 << 45)],
            ..of(node)
        };
        let planned = plan(&with_segment(&no_gpus));
        assert_eq!(
            (planned.cap, planned.cap_rule),
            (None, CapRule::UnknownRanks)
        );
        assert_eq!((planned.inputs.gpus, planned.inputs.nics), (None, Some(5)));
        assert_eq!((planned.ranks_planned, planned.rails), (None, None));
        assert_eq!(planned.segments[0].nic_count, Some(5));
        let bound = plan(&PlanInput {
            ranks_bound: 2,
            ..of(&no_gpus)
        });
        assert_eq!(bound.cap, NonZeroUsize::new(30));
        assert_eq!(
            (&bound.ranks[0].nics, bound.ranks[0].nic_count),
            (&None, None)
        );

        let planned = plan(&with_segment(&no_nics));
        assert_eq!(planned.inputs.nics, None);
        assert_eq!((planned.cap, planned.rails), (NonZeroUsize::new(30), None));
        assert_eq!(
            (&planned.ranks[0].nics, planned.ranks[0].nic_count),
            (&None, None)
        );
        let segment = &planned.segments[0];
        assert_eq!((&segment.rails, segment.nic_count), (&None, None));
        assert_eq!(
            segment.reason,
            "how many NICs there are is unknown: not checked"
        );
    }

    #[test]
    fn segments_where_something_is_unknown() {
        let mut node = node();
        for nic in node.nics.iter_mut().flatten() {
            nic.driver = Some("mlx5_core".to_owned());
        }
        let segments = vec![segment("kv", 1 << 45)];
        let reason = |input: PlanInput<'_>| {
            let segments = segments.clone();
            let plan = plan(&PlanInput { segments, ..input });
            assert_eq!(plan.segments[0].refusal, None);
            plan.segments[0].reason.clone()
        };
        assert_eq!(
            reason(of(&node)),
            "whole on every NIC: 8589934592 page entries of 4Ki on each NIC, no limit known for these \
             NICs"
        );
        assert_eq!(
            reason(counted(None, None)),
            "how many NICs there are is unknown: not checked"
        );
        node.nics = Some(Vec::new());
        assert_eq!(reason(of(&node)), "no NIC to register on");
        let published = Catalogue::published();
        let input = PlanInput {
            entry: published.entry("p5.48xlarge"),
            segments: vec![segment("kv", EFA_PAGE_ENTRIES * 4096 * 33)],
            ..counted(None, None)
        };
        let refusal = plan(&input).segments[0].refusal.clone();
        assert!(matches!(
            refusal,
            Some(Refusal::PageEntries { nics: 32, .. })
        ));
    }

    /// Often the factors that round up.
    fn any_factor() -> impl Strategy<Value = f64> {
        prop_oneof![Just(1.0), 0.9..=1.0, 0.01..=1.0]
    }

    /// Often about as many as there are ranks.
    fn any_cores() -> impl Strategy<Value = usize> {
        prop_oneof![1_usize..64, 1_usize..512, 1_usize..100_000]
    }

    proptest! {
        /// Whatever is known: as many pods as the GPUs have room for bind one by one and keep the
        /// cap of that moment, and together they never have more than the cores.
        #[test]
        fn pods_that_bind_one_by_one_never_exceed_the_cores(
            cores in any_cores(), gpus in 1_usize..=16, each in 1_usize..=16,
            factor in any_factor(), already in 0_usize..4,
        ) {
            let room = gpus.div_ceil(each);
            let mut sum = 0;
            let mut seen = Vec::new();
            for bound in already.min(room - 1) + 1..=room {
                let plan = plan(&PlanInput {
                    gpus_per_rank: count(each),
                    ranks_bound: bound,
                    factor: Factor::new(factor),
                    ..counted(Some(cores), Some(gpus))
                });
                let cap = plan.cap.unwrap().get();
                seen.push(cap);
                sum += cap;
            }
            prop_assert!(sum <= cores.max(room), "{seen:?}");
            prop_assert!(seen.iter().all(|cap| *cap == seen[0]), "{seen:?}");
        }

        /// Also where more are bound than the GPUs have room for.
        #[test]
        fn all_caps_of_a_plan_never_exceed_the_cores(
            cores in any_cores(), gpus in proptest::option::of(0_usize..=16),
            bound in 0_usize..64, each in 1_usize..=16, factor in any_factor(),
        ) {
            let plan = plan(&PlanInput {
                gpus_per_rank: count(each),
                ranks_bound: bound,
                factor: Factor::new(factor),
                ..counted(Some(cores), gpus)
            });
            if let Some(cap) = plan.cap {
                let ranks = plan.ranks.len();
                prop_assert!(cap.get() * ranks <= cores.max(ranks));
                let shares = plan.ranks.iter().filter_map(|rank| rank.core_share);
                prop_assert!(shares.map(NonZeroUsize::get).sum::<usize>() <= cores.max(ranks));
            } else {
                prop_assert_eq!((gpus, bound), (None, 0));
            }
        }
    }
}
