//! Events, each told once: its name follows from what it says of whom, so that the API server refuses a second one,
//! also of another replica or after a restart.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use super::apply::MANAGER;

/// How much of an Event's note the API server takes, in bytes.
const NOTE_BYTES: usize = 1024;
/// Of an object's name in an Event's.
const NAME_CHARS: usize = 200;
/// What is remembered saves requests; all of it is forgotten beyond this.
const REMEMBERED: usize = 16_384;

/// What is told, as a warning: nobody has to be told that all is well.
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    /// Of what.
    pub regarding: ObjectReference,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub note: String,
    /// What was being done, one word.
    pub action: &'static str,
}

impl News {
    /// Of each object a reason is told once.
    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.regarding.uid, self.reason).hash(&mut hasher);
        hasher.finish()
    }

    fn event(&self, instance: &str, now: Timestamp) -> Event {
        let regarding = &self.regarding;
        let of: String = (regarding.name.iter())
            .flat_map(|name| name.chars().take(NAME_CHARS))
            .collect();
        // An Event lies beside what it is of; of what has no namespace, in `default`.
        let namespace = regarding.namespace.as_deref().unwrap_or("default");
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{}.{:016x}", of.trim_end_matches('.'), self.key())),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            action: Some(self.action.to_owned()),
            event_time: Some(MicroTime(now)),
            note: Some(cut(&self.note, NOTE_BYTES)),
            reason: Some(self.reason.to_owned()),
            regarding: Some(regarding.clone()),
            reporting_controller: Some(MANAGER.to_owned()),
            reporting_instance: Some(instance.to_owned()),
            type_: Some("Warning".to_owned()),
            ..Event::default()
        }
    }
}

/// As many whole characters as fit.
fn cut(text: &str, bytes: usize) -> String {
    const MORE: &str = "…";
    if text.len() <= bytes {
        return text.to_owned();
    }
    let mut end = bytes - MORE.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MORE}", &text[..end])
}

/// Tells news.
pub struct Teller {
    client: Client,
    instance: String,
    told: Told,
}

impl Teller {
    /// One that writes as this replica.
    #[must_use]
    pub fn new(client: Client, instance: impl Into<String>) -> Self {
        Self {
            client,
            instance: instance.into(),
            told: Told::default(),
        }
    }

    /// Tells it where nobody has.
    pub async fn once(&self, news: &News) -> Result<(), kube::Error> {
        if self.told.has(news) {
            return Ok(());
        }
        let event = news.event(&self.instance, Timestamp::now());
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => {}
            // 409: it was told. 404, 403: the namespace is gone, or going.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404 | 409) => {}
            Err(error) => return Err(error),
        }
        self.told.remember(news);
        Ok(())
    }
}

/// What was told by this replica.
#[derive(Debug, Default)]
struct Told(Mutex<HashSet<u64>>);

impl Told {
    fn has(&self, news: &News) -> bool {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.contains(&news.key())
    }

    fn remember(&self, news: &News) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= REMEMBERED {
            told.clear();
        }
        told.insert(news.key());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(uid: &str, reason: &'static str) -> News {
        News {
            regarding: ObjectReference {
                name: Some("engine".to_owned()),
                namespace: Some("models".to_owned()),
                uid: Some(uid.to_owned()),
                ..ObjectReference::default()
            },
            reason,
            note: "é".repeat(2000),
            action: "Mount",
        }
    }

    #[test]
    fn the_same_of_the_same_has_one_name() {
        let name = |uid, reason, second| {
            let at = Timestamp::UNIX_EPOCH + k8s_openapi::jiff::SignedDuration::from_secs(second);
            news(uid, reason).event("i", at).metadata.name
        };
        let one = name("u1", "NoPool", 0);
        assert_eq!(one, name("u1", "NoPool", 9));
        assert_ne!(one, name("u2", "NoPool", 0));
        assert_ne!(one, name("u1", "Windows", 0));
    }

    #[test]
    fn a_note_is_as_long_as_the_api_server_takes() {
        let event = news("u1", "NoPool").event("i", Timestamp::UNIX_EPOCH);
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        let note = event.note.unwrap_or_default();
        assert!(note.len() <= NOTE_BYTES && note.ends_with("é…"), "{note}");
    }

    #[test]
    fn what_was_told_is_known_until_there_is_too_much() {
        let told = Told::default();
        told.remember(&news("u1", "NoPool"));
        assert!(told.has(&news("u1", "NoPool")));
        assert!(!told.has(&news("u1", "Windows")));
        for n in 0..REMEMBERED {
            told.remember(&news(&n.to_string(), "NoPool"));
        }
        assert!(!told.has(&news("u1", "NoPool")));
    }
}
