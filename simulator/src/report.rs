//! The comparison as numbers, as one line and as a table for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::compare::{Basis, Cell};

/// Every compared cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// In the order of the tables.
    pub cells: Vec<Cell>,
}

/// The model's best cap of one row beside the measured one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BestCap {
    /// File name of the table.
    pub table: &'static str,
    /// Row of the comparison.
    pub row: String,
    /// Column of the least measured time.
    pub measured: String,
    /// Column of the least modelled time.
    pub modelled: String,
    /// Whether they are the same or next to each other among the measured caps.
    pub hit: bool,
}

impl Report {
    /// Median of the absolute relative errors, over the cells that have one of these bases.
    #[must_use]
    pub fn median_error(&self, bases: &[Basis]) -> f64 {
        let mut errors: Vec<f64> = self
            .cells
            .iter()
            .filter(|cell| bases.contains(&cell.basis))
            .map(|cell| cell.relative_error.abs())
            .collect();
        errors.sort_by(f64::total_cmp);
        let at = |index: usize| errors.get(index).copied().unwrap_or(f64::NAN);
        if errors.len().is_multiple_of(2) {
            (at((errors.len() / 2).wrapping_sub(1)) + at(errors.len() / 2)) / 2.0
        } else {
            at(errors.len() / 2)
        }
    }

    /// Cells that are missed by more than 40 %.
    pub fn missed(&self) -> impl Iterator<Item = &Cell> {
        self.cells
            .iter()
            .filter(|cell| cell.relative_error.abs() > 0.4)
    }

    /// Each row with several caps: its best cap, measured and modelled.
    #[must_use]
    pub fn best_caps(&self) -> Vec<BestCap> {
        self.rows().into_iter().filter_map(best_cap_of).collect()
    }

    /// The cells row by row, those with caps in the order of the caps.
    pub(crate) fn rows(&self) -> Vec<Vec<&Cell>> {
        let mut rows: Vec<Vec<&Cell>> = Vec::new();
        for cell in &self.cells {
            let same = |row: &&mut Vec<&Cell>| {
                row.iter()
                    .all(|other| (other.table, &other.row) == (cell.table, &cell.row))
            };
            match rows.iter_mut().find(same) {
                Some(row) => row.push(cell),
                None => rows.push(vec![cell]),
            }
        }
        for row in &mut rows {
            row.sort_by_key(|cell| cell.cap);
        }
        rows
    }

    /// How many times longer descending order takes than ascending: the modelled ratio over the
    /// measured one, at each cap that was measured in both orders.
    #[must_use]
    pub fn order_effects(&self) -> BTreeMap<String, f64> {
        let of = |row: &str, column: &str| {
            self.cells.iter().find(|cell| {
                (cell.table, cell.row.as_str(), cell.column.as_str())
                    == ("registration_p5_order", row, column)
            })
        };
        self.cells
            .iter()
            .filter_map(|cell| {
                Some((
                    of("ascending", &cell.column)?,
                    of("descending", &cell.column)?,
                ))
            })
            .map(|(up, down)| (up.column.clone(), over_measured(down, up)))
            .collect()
    }

    /// 32 NICs against 4, 4 against 1: the modelled ratio over the measured one.
    #[must_use]
    pub fn nic_effects(&self) -> Vec<f64> {
        let nics: Vec<&Cell> = self
            .cells
            .iter()
            .filter(|cell| cell.table == "registration_nics")
            .collect();
        nics.windows(2)
            .filter_map(|pair| match pair {
                [more, fewer] => Some(over_measured(more, fewer)),
                _ => None,
            })
            .collect()
    }

    /// Of [`Self::order_effects`] the one furthest from 1.
    #[must_use]
    pub fn order_effect(&self) -> f64 {
        furthest(self.order_effects().into_values())
    }

    /// Of [`Self::nic_effects`] the one furthest from 1.
    #[must_use]
    pub fn nic_effect(&self) -> f64 {
        furthest(self.nic_effects())
    }

    /// The line that scripts read. `order` and `nics` are the effects furthest from 1.
    #[must_use]
    pub fn last_line(&self) -> String {
        let best = self.best_caps();
        format!(
            "siding-simulate: median_error={:.3} best_cap_hits={}/{} order={:.2} nics={:.2}",
            self.median_error(&Basis::ALL),
            best.iter().filter(|row| row.hit).count(),
            best.len(),
            self.order_effect(),
            self.nic_effect(),
        )
    }

    /// The comparison for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        for row in self.rows() {
            if let Some(first) = row.first() {
                let _ = writeln!(
                    text,
                    "{} · {}{}",
                    first.table,
                    first.row,
                    suffix(first.basis)
                );
            }
            for cell in row {
                let _ = writeln!(text, "{}", line(cell));
            }
        }
        for best in self.best_caps() {
            let _ = writeln!(text, "{}", best.line());
        }
        for (column, effect) in self.order_effects() {
            let _ = writeln!(
                text,
                "descending / ascending at {column}: {effect:.2} of measured"
            );
        }
        for (name, bases) in [
            ("fitted cells", Basis::Fitted),
            ("p6-b300's", Basis::OwnParameter),
            ("held-out cells", Basis::HeldOut),
        ] {
            let percent = 100.0 * self.median_error(&[bases]);
            let _ = writeln!(text, "median error of {name}: {percent:.1} %");
        }
        for cell in self.missed() {
            let reason = cell.note.unwrap_or("no reason known");
            let _ = writeln!(text, "missed: {} {}: {reason}", cell.row, cell.column);
        }
        let mut told = None;
        for cell in self.cells.iter().filter(|cell| cell.note.is_some()) {
            if cell.note != told {
                told = cell.note;
                let _ = writeln!(text, "* {}: {}", cell.row, told.unwrap_or_default());
            }
        }
        text
    }
}

impl BestCap {
    fn line(&self) -> String {
        let verdict = match (self.measured == self.modelled, self.hit) {
            (true, _) => "the same",
            (false, true) => "its neighbour",
            (false, false) => "MISSED",
        };
        format!(
            "best of {} · {}: measured {}, modelled {} ({verdict})",
            self.table, self.row, self.measured, self.modelled
        )
    }
}

fn best_cap_of(row: Vec<&Cell>) -> Option<BestCap> {
    if row.len() < 2 || row.iter().any(|cell| cell.cap.is_none()) {
        return None;
    }
    let least = |seconds: fn(&Cell) -> f64| {
        (0..row.len()).min_by(|&left, &right| seconds(row[left]).total_cmp(&seconds(row[right])))
    };
    let (measured, modelled) = (least(|cell| cell.measured)?, least(|cell| cell.modelled)?);
    Some(BestCap {
        table: row[measured].table,
        row: row[measured].row.clone(),
        measured: row[measured].column.clone(),
        modelled: row[modelled].column.clone(),
        hit: measured.abs_diff(modelled) <= 1,
    })
}

fn over_measured(above: &Cell, below: &Cell) -> f64 {
    (above.modelled / below.modelled) / (above.measured / below.measured)
}

/// The one furthest from 1, as a ratio.
fn furthest(effects: impl IntoIterator<Item = f64>) -> f64 {
    let distance = |effect: &f64| effect.ln().abs();
    effects
        .into_iter()
        .max_by(|left, right| distance(left).total_cmp(&distance(right)))
        .unwrap_or(f64::NAN)
}

fn suffix(basis: Basis) -> &'static str {
    match basis {
        Basis::Fitted => "",
        Basis::OwnParameter => " (one parameter of its own)",
        Basis::HeldOut => " (held out)",
    }
}

fn line(cell: &Cell) -> String {
    let mark = if cell.note.is_some() { "  *" } else { "" };
    format!(
        "  {:<24} measured {:>7.2} s  modelled {:>7.2} s  {:>+6.1} %{mark}",
        cell.column,
        cell.measured,
        cell.modelled,
        100.0 * cell.relative_error
    )
}
