//! Asks the API server itself for what the caches may not have yet: bounded in time and in number.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::{Api, Client, ResourceExt};
use siding_crds::api::StorePool;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tracing::warn;

/// How long the API server is waited for; the webhook's own limit is 5 s.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long an answer is good for. A namespace is looked at no more often.
const KEPT: Duration = Duration::from_secs(1);
/// Where nothing new was found, the next look is at least so many times as far away as this one took: of the pods
/// of a namespace that has nothing to find no more than one of 200 waits, however slow the API server is.
const REST: u32 = 200;
/// Looks at once.
const AT_ONCE: usize = 16;
/// Namespaces that are remembered.
const MOST_NAMESPACES: usize = 1024;
/// Characters of a namespace's name.
const NAME_LENGTH: usize = 63;

/// A namespace's labels.
pub type Labels = BTreeMap<String, String>;

/// A namespace's pools.
pub type Pools = Vec<Arc<StorePool>>;

/// Why nothing was seen.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// What the API server says.
    #[error("{0}")]
    Api(#[from] kube::Error),
    /// It is silent.
    #[error("the API server did not answer within {} s", PATIENCE.as_secs())]
    TooSlow,
}

/// Who is asked.
pub trait Source: fmt::Debug + Send + Sync {
    /// The labels of a namespace; `None` where it is not there.
    fn labels<'a>(&'a self, namespace: &'a str)
    -> BoxFuture<'a, Result<Option<Labels>, LookError>>;

    /// The pools of a namespace.
    fn pools<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Pools, LookError>>;
}

/// The API server. Lists alone, so that no right is needed that the watches do not need.
#[derive(Clone)]
pub struct ApiServer(pub Client);

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").finish_non_exhaustive()
    }
}

impl Source for ApiServer {
    fn labels<'a>(
        &'a self,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<Option<Labels>, LookError>> {
        async move {
            let all: Api<Namespace> = Api::all(self.0.clone());
            let this = ListParams::default().fields(&format!("metadata.name={namespace}"));
            let found = all.list_metadata(&this).await?.items.into_iter();
            let mut found = found.filter(|one| one.name_any() == namespace);
            Ok(found.next().map(|one| one.labels().clone()))
        }
        .boxed()
    }

    fn pools<'a>(&'a self, namespace: &'a str) -> BoxFuture<'a, Result<Pools, LookError>> {
        async move {
            let all: Api<DeserializeGuard<StorePool>> = Api::namespaced(self.0.clone(), namespace);
            let found = all.list(&ListParams::default()).await?.items.into_iter();
            Ok(found.filter_map(|pool| pool.0.ok()).map(Arc::new).collect())
        }
        .boxed()
    }
}

/// Looks at the API server.
#[derive(Debug)]
pub struct Live {
    source: Arc<dyn Source>,
    turns: Semaphore,
    labels: Looks<Labels>,
    pools: Looks<Pools>,
}

impl Live {
    /// Looks at this one.
    #[must_use]
    pub fn new(source: Arc<dyn Source>) -> Self {
        Self {
            source,
            turns: Semaphore::new(AT_ONCE),
            labels: Looks::default(),
            pools: Looks::default(),
        }
    }

    /// The labels of a namespace that no cache has; `None` where they can't be had in time.
    pub async fn labels(&self, namespace: &str) -> Option<Labels> {
        let look = self.look(namespace, self.source.labels(namespace));
        self.labels
            .of(namespace, async { look.await.flatten() })
            .await
    }

    /// The pools of a namespace, where one of them is not `known` or is another by now; `None` where there is
    /// nothing new, or they can't be had in time.
    pub async fn pools(&self, namespace: &str, known: &[Arc<StorePool>]) -> Option<Pools> {
        let look = self.look(namespace, self.source.pools(namespace));
        let is_new = |pools: &Pools| pools.iter().any(|pool| !is_known(pool, known));
        let look = async { look.await.filter(is_new) };
        self.pools.of(namespace, look).await
    }

    /// Waits for an answer as long as is bearable.
    async fn look<T>(
        &self,
        namespace: &str,
        answer: impl Future<Output = Result<T, LookError>>,
    ) -> Option<T> {
        // Whoever reaches the webhook's port can send any text: no request is made of it.
        if !is_name(namespace) {
            return None;
        }
        let in_turn = async {
            let _turn = self.turns.acquire().await;
            answer.await
        };
        match timeout(PATIENCE, in_turn).await {
            Ok(Ok(found)) => Some(found),
            Ok(Err(error)) => {
                warn!(namespace, %error, "can't look at the API server");
                None
            }
            Err(_) => {
                warn!(namespace, error = %LookError::TooSlow, "can't look at the API server");
                None
            }
        }
    }
}

/// Whether this very version is among those that are known.
fn is_known(pool: &StorePool, known: &[Arc<StorePool>]) -> bool {
    let version = |pool: &StorePool| (pool.uid(), pool.resource_version());
    known.iter().any(|one| version(one) == version(pool))
}

fn is_name(namespace: &str) -> bool {
    let is_known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !namespace.is_empty() && namespace.len() <= NAME_LENGTH && namespace.chars().all(is_known)
}

/// What looks found, by namespace; of each namespace there is one look at a time, for all who wait.
#[derive(Debug)]
struct Looks<T>(Mutex<HashMap<String, Place<T>>>);

type Place<T> = Arc<tokio::sync::Mutex<Option<Looked<T>>>>;

/// What a look found, and until when that holds.
#[derive(Debug)]
struct Looked<T> {
    found: Option<T>,
    until: Instant,
}

impl<T> Default for Looks<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Looks<T> {
    /// What the last look found, where it is good still; else what `look` finds. `None` is nothing new.
    async fn of(&self, namespace: &str, look: impl Future<Output = Option<T>>) -> Option<T> {
        let place = self.place(namespace);
        let mut place = place.lock().await;
        let begin = Instant::now();
        if let Some(looked) = place.as_ref().filter(|looked| begin < looked.until) {
            return looked.found.clone();
        }
        let found = look.await;
        let end = Instant::now();
        let kept = match found {
            Some(_) => KEPT,
            None => KEPT.max((end - begin).saturating_mul(REST)),
        };
        *place = Some(Looked {
            found: found.clone(),
            until: end + kept,
        });
        found
    }

    fn place(&self, namespace: &str) -> Place<T> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= MOST_NAMESPACES && !places.contains_key(namespace) {
            // Those that somebody waits at stay.
            places.retain(|_, place| Arc::strong_count(place) > 1);
        }
        places.entry(namespace.to_owned()).or_default().clone()
    }
}

#[cfg(test)]
pub(crate) mod fake {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Answers after so long, and counts.
    #[derive(Debug, Default)]
    pub(crate) struct Fake {
        pub(crate) takes: Duration,
        pub(crate) labels: Option<Labels>,
        pub(crate) pools: Pools,
        pub(crate) asked: AtomicUsize,
    }

    impl Fake {
        pub(crate) fn of_labels(takes: Duration, labels: Option<Labels>) -> Arc<Self> {
            Arc::new(Self {
                takes,
                labels,
                ..Self::default()
            })
        }

        /// How often it was asked.
        pub(crate) fn asked(&self) -> usize {
            self.asked.load(Ordering::Relaxed)
        }

        async fn answer<T>(&self, answer: T) -> Result<T, LookError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(self.takes).await;
            Ok(answer)
        }
    }

    impl Source for Fake {
        fn labels<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<Labels>, LookError>> {
            self.answer(self.labels.clone()).boxed()
        }

        fn pools<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Pools, LookError>> {
            self.answer(self.pools.clone()).boxed()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::fake::Fake;
    use super::*;

    fn enforced() -> Labels {
        BTreeMap::from([("level".to_owned(), "restricted".to_owned())])
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_wait_share_one_look_and_its_answer_holds_for_a_second() {
        let fake = Fake::of_labels(Duration::from_millis(10), Some(enforced()));
        let live = Live::new(fake.clone());
        let all = futures::future::join_all((0..100).map(|_| live.labels("new"))).await;
        assert!(all.into_iter().all(|labels| labels == Some(enforced())));
        assert_eq!(fake.asked(), 1);
        tokio::time::advance(KEPT).await;
        assert_eq!(live.labels("new").await, Some(enforced()));
        assert_eq!(live.labels("other").await, Some(enforced()));
        assert_eq!(fake.asked(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_api_server_is_waited_for_one_second_and_then_left_alone() {
        let fake = Fake::of_labels(Duration::from_secs(3600), Some(enforced()));
        let live = Live::new(fake.clone());
        let begin = Instant::now();
        assert_eq!(live.labels("new").await, None);
        assert_eq!(begin.elapsed(), PATIENCE);
        tokio::time::advance(PATIENCE * REST - Duration::from_millis(1)).await;
        assert_eq!(live.labels("new").await, None);
        assert_eq!(fake.asked(), 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(live.labels("new").await, None);
        assert_eq!(fake.asked(), 2);
    }

    /// 500 pods a second that no pool selects, each looked for: with an API server that answers at once, with a
    /// slow one, and with a dead one.
    #[tokio::test(start_paused = true)]
    async fn of_the_pods_of_a_namespace_without_pools_one_in_200_waits_at_most() {
        for takes in [1, 5, 50, 500, 3_600_000].map(Duration::from_millis) {
            let fake = Arc::new(Fake {
                takes,
                ..Fake::default()
            });
            let live = Arc::new(Live::new(fake.clone()));
            let (mut waits, begin) = (Vec::new(), Instant::now());
            for n in 0..20_000 {
                tokio::time::sleep_until(begin + Duration::from_millis(2) * n).await;
                let live = live.clone();
                waits.push(tokio::spawn(async move {
                    let begin = Instant::now();
                    assert_eq!(live.pools("models", &[]).await, None);
                    begin.elapsed()
                }));
            }
            let mut late = 0;
            for wait in waits {
                let waited = wait.await.unwrap();
                assert!(waited <= PATIENCE);
                late += usize::from(waited > Duration::from_millis(4));
            }
            assert!(late <= 20_000 / 200 + 500, "{takes:?}: {late}");
            assert!(fake.asked() <= 40, "{takes:?}: {}", fake.asked());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_name_of_a_namespace_is_not_asked_for() {
        let fake = Fake::of_labels(Duration::ZERO, Some(enforced()));
        let live = Live::new(fake.clone());
        let long = "a".repeat(NAME_LENGTH + 1);
        for name in ["", "a/b", "a,metadata.name!=b", "../x", "A", long.as_str()] {
            assert_eq!(live.labels(name).await, None, "{name}");
        }
        assert_eq!(fake.asked(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_namespaces_are_remembered_than_there_is_room_for() {
        let live = Live::new(Fake::of_labels(Duration::ZERO, None));
        for n in 0..=MOST_NAMESPACES {
            live.labels(&format!("n{n}")).await;
        }
        assert!(live.labels.0.lock().unwrap().len() <= MOST_NAMESPACES);
    }
}
