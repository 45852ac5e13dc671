//! What a mount came to, as a table for people and as JSON for machines.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use siding_topology::size::binary;

use crate::board::{Phase, RegistrationStatus, SegmentStatus, Status};

const GIB: f64 = (1_u64 << 30) as f64;

/// A table, and below it in plain sentences why it is so.
#[must_use]
pub fn table(status: &Status) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "SEGMENT", "BYTES", "PAGE", "MAP s", "TOUCH s", "REG s", "GiB/s", "REG", "RINGS", "CAP",
    ]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for segment in &status.segments {
        table.add_row(row(segment, status.registration.as_ref()));
    }
    let mut text = format!("{table}\n");
    explain(&mut text, status);
    text
}

fn row(segment: &SegmentStatus, registration: Option<&RegistrationStatus>) -> [String; 10] {
    let seconds = |phase| {
        segment
            .seconds
            .get(&phase)
            .map_or_else(|| "-".to_owned(), |s| format!("{s:.3}"))
    };
    // With io_uring each region has a ring of its own.
    let rings = registration.and_then(|registration| registration.rings);
    [
        segment.name.clone(),
        binary(segment.size_bytes),
        segment.page.clone().unwrap_or_else(|| "?".to_owned()),
        seconds(Phase::Map),
        seconds(Phase::Touch),
        seconds(Phase::Register),
        rate(segment).map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}")),
        binary(segment.registered_bytes),
        rings.map_or_else(|| "-".to_owned(), |_| segment.regions.to_string()),
        registration.map_or_else(|| "-".to_owned(), short_cap),
    ]
}

fn cap(registration: &RegistrationStatus) -> String {
    registration
        .cap
        .map_or_else(|| "unbounded".to_owned(), |cap| cap.to_string())
}

/// The cap in a table that shall fit 80 columns.
fn short_cap(registration: &RegistrationStatus) -> String {
    registration
        .cap
        .map_or_else(|| "∞".to_owned(), |cap| cap.to_string())
}

/// GiB per second over all phases; unknown where nothing took time.
fn rate(segment: &SegmentStatus) -> Option<f64> {
    let seconds: f64 = segment.seconds.values().sum();
    (seconds > 0.0).then(|| segment.size_bytes as f64 / GIB / seconds)
}

fn explain(text: &mut String, status: &Status) {
    if let Some(registration) = &status.registration {
        let _ = writeln!(
            text,
            "registration: {} ({}); NICs: none; cap {} ({})",
            registration.backend,
            registration.reason,
            cap(registration),
            registration.cap_reason
        );
    }
    for segment in &status.segments {
        let name = &segment.name;
        if let (Some(page), Some(reason)) = (&segment.page, &segment.page_reason) {
            let _ = writeln!(text, "{name}: pages {page}: {reason}");
        }
        if !segment.seconds.contains_key(&Phase::Touch)
            && let Some(reason) = &segment.touch_reason
        {
            let _ = writeln!(text, "{name}: not touched beforehand: {reason}");
        }
        if let Some(shares) = segment
            .node_shares
            .as_ref()
            .filter(|shares| shares.len() > 1)
        {
            let shares: Vec<String> = shares
                .iter()
                .map(|(node, share)| format!("node {node} {:.0} %", share * 100.0))
                .collect();
            let _ = writeln!(text, "{name}: lies on {} (sampled)", shares.join(", "));
        }
        if let Some(left_out) = &segment.left_out {
            let _ = writeln!(text, "{name}: LEFT OUT: {left_out}");
        }
    }
    let pinned = status
        .pinned_bytes
        .map_or_else(|| "unknown".to_owned(), binary);
    let total = status
        .total_seconds
        .map_or_else(|| "-".to_owned(), |total| format!("{total:.3} s"));
    let _ = writeln!(
        text,
        "pinned, as the kernel counts (VmPin): {pinned}; total {total}"
    );
}

/// The same for machines: the status, and what was noted before the mount.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report<'a> {
    /// Everything observed.
    #[serde(flatten)]
    pub status: &'a Status,
    /// Huge pages reserved for this mount, per page size in bytes.
    pub reserved_pages: std::collections::BTreeMap<u64, u64>,
    /// What could not be had on the way.
    pub notes: &'a [String],
    /// Where it is served, with --serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::State;

    #[test]
    fn the_table_tells_every_second_and_what_was_left_out() {
        let mut segment = SegmentStatus::waiting("kv", 4 << 30);
        segment.page = Some("2Mi".to_owned());
        segment.page_reason = Some("as asked for".to_owned());
        segment.seconds = [
            (Phase::Map, 0.001),
            (Phase::Touch, 0.2),
            (Phase::Register, 0.0061),
        ]
        .into();
        segment.registered_bytes = 8 << 20;
        segment.regions = 1;
        segment.left_out = Some("much".to_owned());
        segment.node_shares = Some([(0, 0.25), (1, 0.75)].into());
        let status = Status {
            version: "0".to_owned(),
            state: State::Ready,
            failure: None,
            plan: None,
            registration: Some(RegistrationStatus {
                backend: "io_uring".to_owned(),
                reason: "usable".to_owned(),
                cap: None,
                cap_reason: "by --cap".to_owned(),
                rings: Some(2),
            }),
            pinned_bytes: Some(8 << 20),
            total_seconds: Some(0.2071),
            segments: vec![segment],
        };
        let text = table(&status);
        let row = text.lines().find(|line| line.contains("kv")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert!(row.trim_end().chars().count() <= 80, "{row}");
        assert_eq!(
            cells,
            [
                "kv", "4Gi", "2Mi", "0.001", "0.200", "0.006", "19.3", "8Mi", "1", "∞"
            ]
        );
        for line in [
            "registration: io_uring (usable); NICs: none; cap unbounded (by --cap)",
            "kv: pages 2Mi: as asked for",
            "kv: lies on node 0 25 %, node 1 75 % (sampled)",
            "kv: LEFT OUT: much",
            "pinned, as the kernel counts (VmPin): 8Mi; total 0.207 s",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }
}
