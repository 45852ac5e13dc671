//! Measured against modelled as a picture: one panel a row of the tables, seconds on a log axis.

use std::fmt::Write as _;

use crate::compare::{Basis, Cell};
use crate::report::Report;

const PANEL_WIDTH: f64 = 330.0;
const PANEL_HEIGHT: f64 = 230.0;
const ACROSS: usize = 4;
const HEADER_HEIGHT: f64 = 64.0;
/// Inside a panel: left, top, right, bottom.
const MARGINS: [f64; 4] = [46.0, 34.0, 14.0, 44.0];

const STYLE: &str = "text{font-family:system-ui,sans-serif;font-size:11px;fill:#334155}\
.title{font-size:18px;font-weight:600;fill:#0f172a}.name{font-size:12px;font-weight:600;fill:#0f172a}\
.grid{stroke:#e2e8f0}.line{fill:none;stroke:#2563eb;stroke-width:2}.model{fill:#2563eb}\
.measured{fill:#ffffff;stroke:#ea580c;stroke-width:2}.range{stroke:#ea580c;stroke-width:2}\
.end{text-anchor:end}.middle{text-anchor:middle}";

impl Report {
    /// The comparison as a stand-alone SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let rows = self.rows();
        let down = rows.len().div_ceil(ACROSS);
        let width = PANEL_WIDTH * ACROSS as f64;
        let height = HEADER_HEIGHT + PANEL_HEIGHT * down as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n<style>{STYLE}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        );
        svg.push_str(&header());
        for (index, row) in rows.iter().enumerate() {
            let x = PANEL_WIDTH * (index % ACROSS) as f64;
            let y = HEADER_HEIGHT + PANEL_HEIGHT * (index / ACROSS) as f64;
            let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">");
            svg.push_str(&panel(row));
            svg.push_str("</g>\n");
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn header() -> String {
    "<text class=\"title\" x=\"16\" y=\"28\">Memory registration: measured and modelled, seconds of \
     the slowest rank</text>\n\
     <circle class=\"measured\" cx=\"24\" cy=\"47\" r=\"4\"/>\
     <text x=\"36\" y=\"51\">measured (bar: repeated sweeps)</text>\n\
     <line class=\"line\" x1=\"246\" y1=\"47\" x2=\"272\" y2=\"47\"/>\
     <circle class=\"model\" cx=\"259\" cy=\"47\" r=\"3\"/>\
     <text x=\"280\" y=\"51\">modelled</text>\
     <text x=\"360\" y=\"51\">across: the cap, workers a rank, where nothing else is named</text>\n"
        .to_owned()
}

fn panel(row: &[&Cell]) -> String {
    let scale = Scale::of(row);
    let mut svg = String::new();
    if let Some(first) = row.first() {
        let table = first.table.trim_start_matches("registration_");
        let held_out = match first.basis {
            Basis::HeldOut => " (held out)",
            Basis::OwnParameter => " (own parameter)",
            Basis::Fitted => "",
        };
        let name = escaped(&format!("{table}: {}{held_out}", first.row));
        let _ = writeln!(
            svg,
            "<text class=\"name\" x=\"{}\" y=\"22\">{name}</text>",
            MARGINS[0]
        );
    }
    svg.push_str(&grid(&scale));
    let points: Vec<(f64, &Cell)> = (0..)
        .map(|index| scale.x(index))
        .zip(row.iter().copied())
        .collect();
    svg.push_str(&modelled(&points, &scale));
    for (x, cell) in points {
        svg.push_str(&measured(x, cell, &scale));
        let label = escaped(cell.column.trim_start_matches("cap "));
        let _ = writeln!(
            svg,
            "<text class=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>",
            PANEL_HEIGHT - MARGINS[3] + 16.0 + stagger(row, cell),
        );
    }
    svg
}

/// Long labels take turns on two lines.
fn stagger(row: &[&Cell], cell: &Cell) -> f64 {
    let odd = row
        .iter()
        .position(|other| other.column == cell.column)
        .is_some_and(|index| index % 2 == 1);
    if odd && row.iter().any(|other| other.column.len() > 14) {
        13.0
    } else {
        0.0
    }
}

fn grid(scale: &Scale) -> String {
    let mut svg = String::new();
    let right = PANEL_WIDTH - MARGINS[2];
    for seconds in scale.ticks() {
        let y = scale.y(seconds);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
             <text class=\"end\" x=\"{}\" y=\"{:.1}\">{seconds} s</text>",
            MARGINS[0],
            MARGINS[0] - 6.0,
            y + 4.0
        );
    }
    svg
}

fn modelled(points: &[(f64, &Cell)], scale: &Scale) -> String {
    let place = |(x, cell): &(f64, &Cell)| format!("{x:.1},{:.1}", scale.y(cell.modelled));
    let path: Vec<String> = points.iter().map(place).collect();
    let mut svg = format!("<polyline class=\"line\" points=\"{}\"/>\n", path.join(" "));
    for (x, cell) in points {
        let _ = writeln!(
            svg,
            "<circle class=\"model\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3\"/>",
            scale.y(cell.modelled)
        );
    }
    svg
}

fn measured(x: f64, cell: &Cell, scale: &Scale) -> String {
    let least = cell.published.iter().copied().fold(cell.measured, f64::min);
    let most = cell.published.iter().copied().fold(cell.measured, f64::max);
    format!(
        "<line class=\"range\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>\
         <circle class=\"measured\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"4\">\
         <title>{}: measured {:.2} s, modelled {:.2} s</title></circle>\n",
        scale.y(least),
        scale.y(most),
        scale.y(cell.measured),
        escaped(&cell.column),
        cell.measured,
        cell.modelled
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// From seconds and positions to a panel's pixels.
struct Scale {
    least: f64,
    most: f64,
    positions: usize,
}

impl Scale {
    /// From the tick below all values to the one above.
    fn of(row: &[&Cell]) -> Self {
        let values = || {
            row.iter()
                .flat_map(|cell| cell.published.iter().copied().chain([cell.modelled]))
        };
        let least = values().fold(f64::INFINITY, f64::min);
        let most = values().fold(0.0, f64::max);
        Self {
            least: all_ticks()
                .filter(|tick| *tick <= least)
                .last()
                .unwrap_or(0.001),
            most: all_ticks().find(|tick| *tick >= most).unwrap_or(1000.0),
            positions: row.len(),
        }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> + '_ {
        all_ticks().filter(|tick| (self.least..=self.most).contains(tick))
    }

    fn x(&self, index: usize) -> f64 {
        let width = PANEL_WIDTH - MARGINS[0] - MARGINS[2];
        MARGINS[0] + width * (index as f64 + 0.5) / self.positions.max(1) as f64
    }

    fn y(&self, seconds: f64) -> f64 {
        let span = (self.most / self.least).ln().max(f64::MIN_POSITIVE);
        let height = PANEL_HEIGHT - MARGINS[1] - MARGINS[3];
        MARGINS[1] + height * (1.0 - (seconds / self.least).ln() / span)
    }
}

/// 1, 2 and 5 of each decade.
fn all_ticks() -> impl Iterator<Item = f64> {
    [0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]
        .into_iter()
        .flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * decade))
}
