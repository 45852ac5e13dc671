//! A cache that keeps of each object only what is used: 50,000 pods fit where whole objects would
//! not.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use futures::{Stream, StreamExt};
use kube::runtime::watcher::{self, Event};
use tokio::sync::{Notify, broadcast};
use tracing::warn;

/// A namespaced name; the namespace is empty for what has none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// A key.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            f.pad(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// What changed: the facts before and after.
#[derive(Debug)]
pub struct Change<V> {
    /// Whose.
    pub key: Key,
    /// Before; none where it is new.
    pub before: Option<Arc<V>>,
    /// After; none where it is gone.
    pub after: Option<Arc<V>>,
}

impl<V> Clone for Change<V> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            before: self.before.clone(),
            after: self.after.clone(),
        }
    }
}

/// Facts by key, fed by a watch.
#[derive(Debug)]
pub struct Slim<V> {
    facts: RwLock<Facts<V>>,
    changes: broadcast::Sender<Change<V>>,
    changed: Notify,
}

#[derive(Debug)]
struct Facts<V> {
    by_key: BTreeMap<Key, Arc<V>>,
    /// What a list in progress has told so far.
    listed: BTreeMap<Key, Arc<V>>,
    is_complete: bool,
    /// The group of each, where they are grouped; and who is in it.
    group_of: Option<GroupOf<V>>,
    groups: HashMap<String, BTreeSet<Key>>,
}

type GroupOf<V> = fn(&V) -> Option<&str>;

impl<V> Default for Slim<V> {
    fn default() -> Self {
        Self::new(None)
    }
}

impl<V> Slim<V> {
    /// One that also finds the members of a group.
    #[must_use]
    pub fn grouped(group_of: GroupOf<V>) -> Self {
        Self::new(Some(group_of))
    }

    fn new(group_of: Option<GroupOf<V>>) -> Self {
        Self {
            facts: RwLock::new(Facts {
                by_key: BTreeMap::new(),
                listed: BTreeMap::new(),
                is_complete: false,
                group_of,
                groups: HashMap::new(),
            }),
            // A listener that lags so far behind looks at everything anew.
            changes: broadcast::Sender::new(4096),
            changed: Notify::new(),
        }
    }
}

impl<V: PartialEq + Send + Sync + 'static> Slim<V> {
    /// The facts of one.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<V>> {
        self.read().by_key.get(key).cloned()
    }

    /// All of them, by key.
    #[must_use]
    pub fn all(&self) -> Vec<(Key, Arc<V>)> {
        let facts = self.read();
        facts
            .by_key
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// One value from all of them, without a copy of them.
    #[must_use]
    pub fn fold<T>(&self, start: T, step: impl Fn(T, &V) -> T) -> T {
        let facts = self.read();
        facts
            .by_key
            .values()
            .fold(start, |so_far, value| step(so_far, value))
    }

    /// Those of one namespace, by name.
    #[must_use]
    pub fn of_namespace(&self, namespace: &str) -> Vec<(Key, Arc<V>)> {
        let facts = self.read();
        facts
            .by_key
            .range(Key::new(namespace, "")..)
            .take_while(|(key, _)| key.namespace == namespace)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// Those of one group, by key.
    #[must_use]
    pub fn of_group(&self, group: &str) -> Vec<(Key, Arc<V>)> {
        let facts = self.read();
        let keys = facts.groups.get(group).into_iter().flatten();
        keys.filter_map(|key| Some((key.clone(), facts.by_key.get(key)?.clone())))
            .collect()
    }

    /// Whether the first list is complete: before that, what is absent is unknown.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.read().is_complete
    }

    /// Waits for the first list.
    pub async fn wait_until_complete(&self) {
        self.wait_for(|slim| slim.is_complete().then_some(())).await;
    }

    /// Changes from now on.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Change<V>> {
        self.changes.subscribe()
    }

    /// Waits until `look` finds something, looking again after each change.
    pub async fn wait_for<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before looking, or a change in between would be slept through.
            changed.as_mut().enable();
            if let Some(found) = look(self) {
                return found;
            }
            changed.await;
        }
    }

    /// Takes one event of a watch; `facts_of` says what to keep of an object, if anything.
    pub fn take<K>(&self, event: Event<K>, facts_of: impl Fn(&K) -> Option<(Key, V)>) {
        let changes = match event {
            Event::Init => {
                self.write().listed.clear();
                return;
            }
            Event::InitApply(object) => {
                if let Some((key, value)) = facts_of(&object) {
                    self.write().listed.insert(key, Arc::new(value));
                }
                return;
            }
            Event::InitDone => self.write().finish_list(),
            Event::Apply(object) => match facts_of(&object) {
                Some((key, value)) => self.write().put(key, value).into_iter().collect(),
                None => Vec::new(),
            },
            Event::Delete(object) => match facts_of(&object) {
                Some((key, _)) => self.write().remove(key).into_iter().collect(),
                None => Vec::new(),
            },
        };
        for change in changes {
            // Nobody listens: nothing is lost.
            let _ = self.changes.send(change);
        }
        self.changed.notify_waiters();
    }

    /// Follows a watch until its stream ends. Its errors are told; the stream itself tries again.
    pub async fn follow<K>(
        &self,
        kind: &str,
        watch: impl Stream<Item = Result<Event<K>, watcher::Error>>,
        facts_of: impl Fn(&K) -> Option<(Key, V)>,
    ) {
        futures::pin_mut!(watch);
        while let Some(event) = watch.next().await {
            match event {
                Ok(event) => self.take(event, &facts_of),
                Err(error) => warn!(kind, %error, "a watch was interrupted"),
            }
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Facts<V>> {
        self.facts.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Facts<V>> {
        self.facts.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V: PartialEq> Facts<V> {
    fn put(&mut self, key: Key, value: V) -> Option<Change<V>> {
        let value = Arc::new(value);
        let before = self.by_key.insert(key.clone(), value.clone());
        self.regroup(&key, before.as_deref(), Some(&value));
        (before.as_ref() != Some(&value)).then_some(Change {
            key,
            before,
            after: Some(value),
        })
    }

    fn remove(&mut self, key: Key) -> Option<Change<V>> {
        let before = self.by_key.remove(&key)?;
        self.regroup(&key, Some(&before), None);
        Some(Change {
            key,
            before: Some(before),
            after: None,
        })
    }

    /// What was not listed again is gone.
    fn finish_list(&mut self) -> Vec<Change<V>> {
        self.is_complete = true;
        let old = std::mem::replace(&mut self.by_key, std::mem::take(&mut self.listed));
        let gone = old
            .iter()
            .filter(|(key, _)| !self.by_key.contains_key(key))
            .map(|(key, before)| Change {
                key: key.clone(),
                before: Some(before.clone()),
                after: None,
            });
        let here = self.by_key.iter().filter_map(|(key, after)| {
            let before = old.get(key);
            (before != Some(after)).then(|| Change {
                key: key.clone(),
                before: before.cloned(),
                after: Some(after.clone()),
            })
        });
        let changes: Vec<_> = gone.chain(here).collect();
        for change in &changes {
            self.regroup(
                &change.key,
                change.before.as_deref(),
                change.after.as_deref(),
            );
        }
        changes
    }

    fn regroup(&mut self, key: &Key, before: Option<&V>, after: Option<&V>) {
        let Some(group_of) = self.group_of else {
            return;
        };
        let (before, after) = (before.and_then(group_of), after.and_then(group_of));
        if before == after {
            return;
        }
        if let Some(left) = before.and_then(|group| self.groups.get_mut(group)) {
            left.remove(key);
            if left.is_empty() {
                self.groups.remove(before.unwrap_or_default());
            }
        }
        if let Some(entered) = after {
            let keys = self.groups.entry(entered.to_owned()).or_default();
            keys.insert(key.clone());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn facts_of(object: &(&str, u32)) -> Option<(Key, u32)> {
        (object.1 < 100).then(|| (Key::new("ns", object.0), object.1))
    }

    fn changes(
        receiver: &mut broadcast::Receiver<Change<u32>>,
    ) -> Vec<(String, Option<u32>, Option<u32>)> {
        let mut all = Vec::new();
        while let Ok(change) = receiver.try_recv() {
            all.push((
                change.key.name,
                change.before.map(|value| *value),
                change.after.map(|value| *value),
            ));
        }
        all
    }

    #[test]
    fn a_second_list_tells_only_what_is_different() {
        let slim = Slim::default();
        assert!(!slim.is_complete());
        for event in [
            Event::Init,
            Event::InitApply(("a", 1)),
            Event::InitApply(("b", 2)),
        ] {
            slim.take(event, facts_of);
        }
        assert_eq!(slim.all(), [], "a list in progress is not shown");
        slim.take(Event::InitDone, facts_of);
        assert!(slim.is_complete());

        let mut receiver = slim.subscribe();
        for event in [
            Event::Apply(("a", 1)),
            Event::Init,
            Event::InitApply(("a", 3)),
            Event::InitApply(("c", 4)),
            Event::InitApply(("ignored", 100)),
            Event::InitDone,
        ] {
            slim.take(event, facts_of);
        }
        assert_eq!(
            changes(&mut receiver),
            [
                ("b".to_owned(), Some(2), None),
                ("a".to_owned(), Some(1), Some(3)),
                ("c".to_owned(), None, Some(4)),
            ]
        );
    }

    #[test]
    fn deleting_what_is_not_there_is_no_change() {
        let slim = Slim::default();
        let mut receiver = slim.subscribe();
        slim.take(Event::Delete(("a", 1)), facts_of);
        assert_eq!(changes(&mut receiver), []);
        slim.take(Event::Apply(("a", 1)), facts_of);
        slim.take(Event::Delete(("a", 1)), facts_of);
        assert_eq!(changes(&mut receiver).len(), 2);
        assert_eq!(slim.get(&Key::new("ns", "a")), None);
    }

    #[test]
    fn a_namespace_has_its_own_and_no_other() {
        let slim = Slim::default();
        for (namespace, name) in [("a", "x"), ("ab", "y"), ("b", "z")] {
            slim.take(Event::Apply((namespace, name)), |object| {
                Some((Key::new(object.0, object.1), 1_u32))
            });
        }
        let names: Vec<_> = slim
            .of_namespace("a")
            .into_iter()
            .map(|(key, _)| key.name)
            .collect();
        assert_eq!(names, ["x"]);
    }

    #[test]
    fn members_of_a_group_are_found_wherever_they_came_from_or_went() {
        fn parity(value: &u32) -> Option<&str> {
            (*value > 0).then_some(if value.is_multiple_of(2) {
                "even"
            } else {
                "odd"
            })
        }
        let slim = Slim::grouped(parity);
        let members = |group: &str| -> Vec<String> {
            let all = slim.of_group(group);
            all.into_iter().map(|(key, _)| key.name).collect()
        };
        for event in [
            Event::Init,
            Event::InitApply(("a", 1)),
            Event::InitApply(("b", 2)),
        ] {
            slim.take(event, facts_of);
        }
        slim.take(Event::InitDone, facts_of);
        assert_eq!(
            (members("odd"), members("even")),
            (vec!["a".into()], vec!["b".into()])
        );
        slim.take(Event::Apply(("a", 4)), facts_of);
        slim.take(Event::Apply(("c", 0)), facts_of);
        assert_eq!(members("even"), ["a", "b"]);
        slim.take(Event::Delete(("b", 2)), facts_of);
        assert_eq!(
            (members("odd"), members("even")),
            (vec![], vec!["a".into()])
        );
        slim.take(Event::Init, facts_of);
        slim.take(Event::InitDone, facts_of);
        assert_eq!(members("even"), [""; 0]);
        assert!(slim.read().groups.is_empty(), "an empty group is not kept");
    }

    #[tokio::test]
    async fn a_waiter_sees_what_comes_while_it_looks() {
        let slim = Arc::new(Slim::default());
        let waiting = tokio::spawn({
            let slim = slim.clone();
            async move {
                slim.wait_for(|slim: &Slim<u32>| slim.get(&Key::new("ns", "a")))
                    .await
            }
        });
        tokio::task::yield_now().await;
        slim.take(Event::Apply(("b", 1)), facts_of);
        tokio::task::yield_now().await;
        slim.take(Event::Apply(("a", 7)), facts_of);
        assert_eq!(*waiting.await.unwrap(), 7);
    }
}
