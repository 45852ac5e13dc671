//! What is to be looked at, and when: each key once, never twice at the same time, later and later
//! while it fails. Pure: time comes in.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// First pause after a failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The backlog of one controller.
#[derive(Debug)]
pub struct Backlog<K> {
    due: BTreeSet<(Instant, K)>,
    due_at: HashMap<K, Instant>,
    in_work: HashSet<K>,
    failures: HashMap<K, u32>,
}

impl<K> Default for Backlog<K> {
    fn default() -> Self {
        Self {
            due: BTreeSet::new(),
            due_at: HashMap::new(),
            in_work: HashSet::new(),
            failures: HashMap::new(),
        }
    }
}

impl<K: Clone + Ord + Hash> Backlog<K> {
    /// Is to be looked at then; an earlier time wins.
    pub fn add(&mut self, key: K, at: Instant) {
        if let Some(before) = self.due_at.get(&key).copied() {
            if before <= at {
                return;
            }
            self.due.remove(&(before, key.clone()));
        }
        self.due_at.insert(key.clone(), at);
        self.due.insert((at, key));
    }

    /// Takes what is due and not in work.
    pub fn take(&mut self, now: Instant) -> Option<K> {
        let found = self
            .due
            .iter()
            .take_while(|(at, _)| *at <= now)
            .find(|(_, key)| !self.in_work.contains(key))
            .cloned()?;
        self.due.remove(&found);
        self.due_at.remove(&found.1);
        self.in_work.insert(found.1.clone());
        Some(found.1)
    }

    /// When the next one that is not in work is due.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        let waiting = self.due.iter().find(|(_, key)| !self.in_work.contains(key));
        waiting.map(|(at, _)| *at)
    }

    /// It was looked at. `again` is when it is to be looked at in any case.
    pub fn done(&mut self, key: &K, again: Option<Instant>) {
        self.in_work.remove(key);
        self.failures.remove(key);
        if let Some(at) = again {
            self.add(key.clone(), at);
        }
    }

    /// Looking at it failed: it comes again, the later the more often it failed.
    pub fn failed(&mut self, key: &K, now: Instant) {
        self.in_work.remove(key);
        let failures = self.failures.entry(key.clone()).or_default();
        let pause = FIRST_PAUSE.saturating_mul(1 << (*failures).min(16));
        *failures += 1;
        // What became due while it was in work waits as well: it would fail again.
        if let Some(before) = self.due_at.remove(key) {
            self.due.remove(&(before, key.clone()));
        }
        self.add(key.clone(), now + pause.min(LONGEST_PAUSE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_key_that_is_added_often_is_taken_once_and_at_its_earliest() {
        let (mut backlog, now) = (Backlog::default(), Instant::now());
        for at in [now + seconds(2), now + seconds(1), now + seconds(3)] {
            backlog.add("a", at);
        }
        assert_eq!(backlog.next(), Some(now + seconds(1)));
        assert_eq!(backlog.take(now), None);
        assert_eq!(backlog.take(now + seconds(1)), Some("a"));
        assert_eq!(backlog.take(now + seconds(9)), None);
    }

    #[test]
    fn what_changes_while_it_is_looked_at_is_looked_at_again_and_not_at_the_same_time() {
        let (mut backlog, now) = (Backlog::default(), Instant::now());
        backlog.add("a", now);
        assert_eq!(backlog.take(now), Some("a"));
        backlog.add("a", now);
        backlog.add("b", now);
        assert_eq!(backlog.take(now), Some("b"));
        assert_eq!((backlog.take(now), backlog.next()), (None, None));
        backlog.done(&"a", None);
        assert_eq!(backlog.take(now), Some("a"));
    }

    #[test]
    fn what_fails_comes_later_and_later_and_success_forgets() {
        let (mut backlog, mut now) = (Backlog::default(), Instant::now());
        backlog.add("a", now);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            backlog.take(now);
            // A change in the meantime does not make it come sooner.
            backlog.add("a", now);
            backlog.failed(&"a", now);
            let next = backlog.next().unwrap_or(now);
            pauses.push(next.duration_since(now).as_millis());
            now = next;
        }
        assert_eq!(pauses[..4], [500, 1000, 2000, 4000]);
        assert_eq!(pauses[11], 300_000);
        backlog.take(now);
        backlog.done(&"a", Some(now + seconds(7)));
        assert_eq!(backlog.next(), Some(now + seconds(7)));
        backlog.take(now + seconds(7));
        backlog.failed(&"a", now);
        assert_eq!(backlog.next(), Some(now + FIRST_PAUSE));
    }
}
