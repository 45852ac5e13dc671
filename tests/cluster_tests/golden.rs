//! What kubectl prints, against what it printed when somebody last looked at it and found that it reads well.

use std::path::Path;

use regex::Regex;

/// What differs from run to run.
const MASKS: [(&str, &str); 9] = [
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME"),
    (
        r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}",
        "TIME",
    ),
    (r"(sha256:|containerd://)[0-9a-f]+", "${1}DIGEST"),
    (r"\b\d+(\.\d+){3}\b", "IP"),
    // Columns are as wide as the names in them.
    (r"(\S)  +", "$1  "),
    (r"\b(\d+[smhd])+\b", "AGE"),
    (r"\b\d+(\.\d+)?(e-?\d+)?\b", "N"),
    (r" +\n", "\n"),
];

/// Compares each text with `golden/NAME.txt`; what a machine's speed, size or clock decides is left out.
///
/// # Panics
/// Where some differ, with where the new texts lie: look at them, and copy them over the old if they read well.
pub(super) fn compare(texts: &[(&str, String)]) {
    let differ: Vec<String> = texts.iter().filter_map(difference).collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

fn difference((name, text): &(&str, String)) -> Option<String> {
    let mut found = format!("{}\n", text.trim_end());
    for (pattern, mask) in MASKS {
        let mask = Regex::new(pattern).unwrap().replace_all(&found, mask);
        found = mask.into_owned();
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster_tests/golden");
    let golden = golden.join(format!("{name}.txt"));
    let wanted = std::fs::read_to_string(&golden).unwrap_or_default();
    if found == wanted {
        return None;
    }
    let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.txt"));
    std::fs::write(&new, &found).unwrap();
    let (golden, new) = (golden.display(), new.display());
    Some(format!(
        "it reads otherwise than {golden}; it is in {new}:\n{found}"
    ))
}
