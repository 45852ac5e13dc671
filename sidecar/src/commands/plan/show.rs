//! A plan for people, and as an engine's environment.

use std::fmt::{Display, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use siding_topology::plan::{Plan, RankPlan, SegmentPlan};
use siding_topology::size::binary;

use crate::config::CAP_VARIABLE;

/// Mooncake's list of the NICs that it may use.
const NIC_VARIABLE: &str = "MC_TE_FILTERS";

/// A summary, a table of the ranks, and why it is so.
pub(super) fn table(plan: &Plan) -> String {
    let mut text = String::new();
    summary(&mut text, plan);
    if !plan.ranks.is_empty() {
        let _ = writeln!(text, "{}", ranks(&plan.ranks));
    }
    for gpu in plan.rails.iter().flat_map(|rails| &rails.gpus) {
        let _ = writeln!(text, "GPU {}: {}", gpu.gpu, gpu.reason);
    }
    let mut said = "";
    for rank in plan.ranks.iter().filter(|rank| rank.gpus.is_empty()) {
        if rank.reason != said {
            said = &rank.reason;
            let _ = writeln!(text, "rank {}: {said}", rank.rank);
        }
    }
    for segment in &plan.segments {
        let _ = writeln!(text, "{}", words(segment));
    }
    let findings = plan.rails.iter().flat_map(|rails| &rails.findings);
    for finding in findings {
        let _ = writeln!(text, "finding: {finding}");
    }
    text
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
        .set_header(["RANK", "GPUS", "NICS", "WHICH", "EVIDENCE", "CORES"]);
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
    or_dash(names.chunks(4).map(|some| some.join(" ")).collect(), "\n")
}

fn or_dash(all: Vec<String>, between: &str) -> String {
    if all.is_empty() {
        "-".to_owned()
    } else {
        all.join(between)
    }
}

fn or_unknown(value: Option<impl Display>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
}

fn words(segment: &SegmentPlan) -> String {
    let nics = or_unknown(segment.nic_count);
    let rails = segment
        .rails
        .as_ref()
        .map_or_else(String::new, |rails| format!(" ({})", rails.reason));
    let (name, size) = (&segment.name, binary(segment.bytes));
    format!("{name}: {size} on {nics} NICs{rails}: {}", segment.reason)
}

/// Variables of the environment of Mooncake. What is unknown is left out: a 0 or an empty value
/// would mean something else. What differs by rank is in force only where there is one rank.
pub(super) fn env(plan: &Plan) -> String {
    let mut text = format!("# cap: {}\n", plan.cap_reason);
    if let Some(cap) = plan.cap {
        let _ = writeln!(text, "{CAP_VARIABLE}={cap}");
    }
    let named = plan.ranks.iter().filter_map(|rank| {
        let nics = rank.nics.as_ref().filter(|nics| !nics.is_empty())?;
        Some((rank, nics))
    });
    let named: Vec<_> = named.collect();
    let is_alone = plan.ranks.len() == 1;
    if !named.is_empty() && !is_alone {
        text.push_str("# The rest differs by rank: each takes its own.\n");
    }
    let comment = if is_alone { "" } else { "# " };
    for (rank, nics) in named {
        let gpus = or_dash(rank.gpus.iter().map(ToString::to_string).collect(), " ");
        let _ = writeln!(text, "# rank {} (GPUs {gpus}):", rank.rank);
        let _ = writeln!(text, "{comment}{NIC_VARIABLE}={}", nics.join(","));
    }
    text
}
