//! Benchmarks: ratios against peers and physical limits, measured side by side in one run.

pub mod mooncake;
pub mod mount;
pub mod registration;

/// This process's own binary, for processes that it starts: also where its file is no longer.
pub const OWN_BINARY: &str = "/proc/self/exe";

/// The smallest of several seconds.
#[must_use]
pub fn minimum(seconds: impl IntoIterator<Item = f64>) -> Option<f64> {
    seconds.into_iter().min_by(f64::total_cmp)
}

/// The middle of several seconds.
#[must_use]
pub fn median(seconds: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = seconds.into_iter().collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several() {
        assert_eq!(minimum([3.0, 1.0, 2.0]), Some(1.0));
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!((minimum([]), median([])), (None, None));
    }
}
