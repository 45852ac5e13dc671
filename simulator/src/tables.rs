//! The published tables, as they lie in `tests/reference/`.

/// One published table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its file's name without the ending.
    pub name: &'static str,
    /// Its comment lines: what was measured, and the units.
    pub about: Vec<&'static str>,
    /// Names of its columns.
    pub columns: Vec<&'static str>,
    /// Its lines, cell by cell.
    pub rows: Vec<Vec<&'static str>>,
}

macro_rules! embedded {
    ($($name:literal),+) => {
        [$(($name, include_str!(concat!("../../tests/reference/", $name, ".tsv")))),+]
    };
}

const FILES: [(&str, &str); 5] = embedded![
    "registration_accumulation",
    "registration_nics",
    "registration_p5_order",
    "registration_p5_cores",
    "registration_platforms"
];

/// The registration tables.
#[must_use]
pub fn tables() -> Vec<Table> {
    FILES.iter().map(|(name, text)| parse(name, text)).collect()
}

fn parse(name: &'static str, text: &'static str) -> Table {
    let comment = |line: &&str| line.starts_with('#');
    let mut lines = text
        .lines()
        .filter(|line| !comment(line) && !line.is_empty());
    Table {
        name,
        about: text.lines().filter(comment).collect(),
        columns: lines.next().unwrap_or_default().split('\t').collect(),
        rows: lines.map(|line| line.split('\t').collect()).collect(),
    }
}

impl Table {
    /// Each row as its cells with their column names.
    pub(crate) fn cells(&self) -> impl Iterator<Item = Vec<(&'static str, &'static str)>> + '_ {
        let named = |row: &Vec<&'static str>| {
            self.columns
                .iter()
                .copied()
                .zip(row.iter().copied())
                .collect()
        };
        self.rows.iter().map(named)
    }
}

/// The values of one cell: several where sweeps were repeated, none where it says `-`.
pub(crate) fn values(cell: &str) -> Vec<f64> {
    cell.split(',')
        .filter_map(|value| value.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        let shapes: Vec<_> = tables()
            .iter()
            .map(|table| (table.name, table.columns.len(), table.rows.len()))
            .collect();
        assert_eq!(
            shapes,
            [
                ("registration_accumulation", 4, 4),
                ("registration_nics", 2, 3),
                ("registration_p5_order", 4, 5),
                ("registration_p5_cores", 7, 3),
                ("registration_platforms", 8, 2),
            ]
        );
        for table in tables() {
            assert!(!table.about.is_empty(), "{}", table.name);
            for row in &table.rows {
                assert_eq!(row.len(), table.columns.len(), "{} {row:?}", table.name);
            }
        }
    }

    #[test]
    fn cells() {
        assert_eq!(values("108,99,128"), [108.0, 99.0, 128.0]);
        assert_eq!(values("17.6"), [17.6]);
        assert_eq!(values("-"), [0.0; 0]);
    }
}
