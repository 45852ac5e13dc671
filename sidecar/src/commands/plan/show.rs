//! A plan for people, and as an engine's environment.

use std::fmt::{Display, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use siding_topology::plan::{Plan, RankPlan, SegmentPlan};
use siding_topology::size::binary;

use crate::config::CAP_VARIABLE;
use crate::failure::Failure;
use crate::output::plain;

/// Mooncake's list of the NICs that it may use, separated by commas (seen so with the wheel
/// 0.3.13.post1 on three rdma_rxe devices; a name that it does not find is passed over).
const NIC_VARIABLE: &str = "MC_TE_FILTERS";

/// A summary, a table of the ranks, and why it is so.
pub(super) fn table(plan: &Plan) -> String {
    let mut text = String::new();
    summary(&mut text, plan);
    if !plan.ranks.is_empty() {
        let _ = writeln!(text, "{}", ranks(&plan.ranks));
    }
    for gpu in plan.rails.iter().flat_map(|rails| &rails.gpus) {
        let _ = writeln!(text, "GPU {}: {}", gpu.gpu, plain(&gpu.reason));
    }
    let without: Vec<_> = plan
        .ranks
        .iter()
        .filter(|rank| rank.gpus.is_empty())
        .collect();
    for alike in without.chunk_by(|one, next| one.reason == next.reason) {
        let (Some(first), Some(last)) = (alike.first(), alike.last()) else {
            continue;
        };
        let which = match alike {
            [_] => format!("rank {}", first.rank),
            _ => format!("ranks {} to {}", first.rank, last.rank),
        };
        let _ = writeln!(text, "{which}: {}", plain(&first.reason));
    }
    for segment in &plan.segments {
        let _ = writeln!(text, "{}", words(segment));
    }
    for finding in findings(plan) {
        let _ = writeln!(text, "finding: {finding}");
    }
    text
}

/// All that was found, each as a line.
fn findings(plan: &Plan) -> impl Iterator<Item = String> + '_ {
    plan.findings.iter().map(|finding| plain(finding))
}

fn summary(text: &mut String, plan: &Plan) {
    let inputs = &plan.inputs;
    let instance_type = or_unknown(inputs.instance_type.as_ref());
    let known = match &inputs.instance_type {
        Some(_) if !inputs.is_catalogued => " (not in the catalogue)",
        _ => "",
    };
    let _ = writeln!(text, "instance type: {instance_type}{known}");
    let _ = match plan.cap {
        Some(cap) => writeln!(text, "cap: {cap} a rank ({})", plan.cap_reason),
        None => writeln!(text, "cap: none ({})", plan.cap_reason),
    };
    let _ = writeln!(text, "factor: {} ({})", inputs.factor, inputs.factor_reason);
    let _ = match inputs.cores {
        Some(cores) => writeln!(text, "cores: {} ({:?})", cores.count, cores.source),
        None => writeln!(text, "cores: unknown"),
    };
    let _ = match &plan.ranks_planned {
        Some(ranks) => writeln!(text, "ranks: {} ({})", ranks.count, ranks.reason),
        None => writeln!(text, "ranks: unknown"),
    };
    let (gpus, nics) = (or_unknown(inputs.gpus), or_unknown(inputs.nics));
    let _ = writeln!(text, "GPUs: {gpus}; usable NICs: {nics}");
}

fn ranks(ranks: &[RankPlan]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(["RANK", "GPUS", "NICS", "NIC NAMES", "EVIDENCE", "CORES"]);
    for rank in ranks {
        table.add_row([
            rank.rank.to_string(),
            match rank.nics {
                Some(_) => or_dash(rank.gpus.iter().map(ToString::to_string).collect(), "\n"),
                None => "?".to_owned(),
            },
            or_unknown(rank.nic_count),
            rank.nics
                .as_ref()
                .map_or_else(|| "?".to_owned(), |nics| lines(nics)),
            or_unknown(rank.evidence),
            or_unknown(rank.core_share),
        ]);
    }
    table
}

/// A few names a line.
fn lines(names: &[String]) -> String {
    let line = |some: &[String]| plain(&some.join(" "));
    or_dash(names.chunks(4).map(line).collect(), "\n")
}

fn or_dash(all: Vec<String>, between: &str) -> String {
    if all.is_empty() {
        "-".to_owned()
    } else {
        all.join(between)
    }
}

fn or_unknown(value: Option<impl Display>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| plain(&value.to_string()))
}

fn words(segment: &SegmentPlan) -> String {
    let nics = or_unknown(segment.nic_count);
    let rails = segment
        .rails
        .as_ref()
        .map_or_else(String::new, |rails| format!(" ({})", plain(&rails.reason)));
    let (name, size) = (&segment.name, binary(segment.bytes));
    let noun = if segment.nic_count == Some(1) {
        "NIC"
    } else {
        "NICs"
    };
    format!("{name}: {size} on {nics} {noun}{rails}: {}", segment.reason)
}

/// Variables of the environment of Mooncake. What is unknown is left out: a 0 or an empty value
/// would mean something else. What differs by rank is in force only where there is one rank, or one
/// is asked for.
///
/// # Errors
/// A rank that the plan has not, and a NIC whose name is no plain word.
pub(super) fn env(plan: &Plan, only: Option<usize>) -> Result<String, Failure> {
    let ranks = match only {
        None => plan.ranks.as_slice(),
        Some(rank) => {
            std::slice::from_ref(plan.ranks.get(rank).ok_or_else(|| no_rank(plan, rank))?)
        }
    };
    let mut text = format!("# cap: {}\n", plan.cap_reason);
    if let Some(cap) = plan.cap {
        let _ = writeln!(text, "{CAP_VARIABLE}={cap}");
    }
    let mut named = Vec::new();
    for rank in ranks {
        if let Some(nics) = rank.nics.as_ref().filter(|nics| !nics.is_empty()) {
            nics.iter().try_for_each(|name| literal(name))?;
            named.push((rank, nics));
        }
    }
    let comment = if ranks.len() == 1 { "" } else { "# " };
    if !named.is_empty() && ranks.len() > 1 {
        text.push_str(BY_RANK);
    }
    for (rank, nics) in named {
        let gpus = or_dash(rank.gpus.iter().map(ToString::to_string).collect(), " ");
        let _ = writeln!(text, "# rank {} (GPUs {gpus}):", rank.rank);
        let _ = writeln!(text, "{comment}{NIC_VARIABLE}={}", nics.join(","));
    }
    for rank in ranks {
        if rank.nics.as_ref().is_none_or(Vec::is_empty) {
            let (rank, why) = (rank.rank, plain(&rank.reason));
            let _ = writeln!(text, "# rank {rank}: no {NIC_VARIABLE}: {why}");
        }
    }
    for finding in findings(plan) {
        let _ = writeln!(text, "# finding: {finding}");
    }
    Ok(text)
}

const BY_RANK: &str = "\
# The rest differs by rank; ranks are numbered by the PCI addresses of their GPUs. Each
# takes its own, which `--rank N` prints in force.
";

fn no_rank(plan: &Plan, rank: usize) -> Failure {
    let count = plan.ranks.len();
    Failure::input(match count {
        0 => format!("--rank: {rank}: how many ranks there are is unknown; give --gpus or --ranks"),
        1 => format!("--rank: {rank}: the node is planned for 1 rank; write 0"),
        _ => format!(
            "--rank: {rank}: the node is planned for {count} ranks; write 0 to {}",
            count - 1
        ),
    })
}

/// Whether a shell and every reader of such files take a name for what it is. Quotes would not do:
/// some readers keep them.
fn literal(name: &str) -> Result<(), Failure> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._:-".contains(letter);
    if !name.is_empty() && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(Failure::input(format!(
        "NIC {name:?}: such a name can't go into an environment; rename the device to letters, \
         digits, '.', '_', ':' and '-' (rdma dev set OLD name NEW), or use -o json"
    )))
}
