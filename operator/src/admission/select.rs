//! Which pool a pod is of.

use std::sync::Arc;

use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};
use siding_crds::api::StorePool;
use siding_crds::quoted;
use siding_crds::reasons::Skip;

use super::asked::Asked;
use super::skip::Skipped;

/// The one pool that selects a pod. One that is being deleted selects none.
pub(super) fn pool_of<'w>(
    asked: &Asked<'_>,
    pools: &'w [Arc<StorePool>],
) -> Result<&'w StorePool, Skipped> {
    let labels = asked.pod.labels();
    let mut selecting = Vec::new();
    let mut broken = None;
    let living = pools
        .iter()
        .filter(|pool| pool.metadata.deletion_timestamp.is_none());
    for pool in living {
        match selector(pool) {
            Ok(selector) if selector.matches(&labels) => selecting.push(pool.as_ref()),
            Ok(_) => {}
            Err(why) => broken = broken.or(Some(why)),
        }
    }
    match (selecting.as_slice(), broken) {
        ([pool], _) => Ok(pool),
        ([], Some(why)) => Err(why),
        ([], None) => Err(none(asked, pools.len())),
        (several, _) => Err(conflict(asked, several)),
    }
}

/// Which pods a pool selects, or why none.
pub(super) fn selector(pool: &StorePool) -> Result<Selector, Skipped> {
    Selector::try_from(pool.spec.pod_selector.clone()).map_err(|error| {
        let name = quoted(&pool.name_any());
        let message = format!("spec.podSelector of StorePool {name} can't be used: {error}");
        Skipped::new(Skip::InvalidPool, message)
    })
}

fn none(asked: &Asked<'_>, pools: usize) -> Skipped {
    let namespace = quoted(asked.namespace);
    let message = match pools {
        0 => format!("namespace {namespace} has no StorePool"),
        _ => format!(
            "no StorePool of namespace {namespace} selects it by its labels; \
             kubectl get storepools -n {} shows them",
            asked.namespace
        ),
    };
    Skipped::new(Skip::NoPool, message)
}

/// Names in a message.
const NAMED: usize = 4;

fn conflict(asked: &Asked<'_>, pools: &[&StorePool]) -> Skipped {
    let mut names: Vec<String> = pools.iter().map(|pool| quoted(&pool.name_any())).collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let more = if more == 0 {
        String::new()
    } else {
        format!(" and {more} more")
    };
    let message = format!(
        "StorePools {}{more} of namespace {} select it; change their spec.podSelector so that one does",
        names.join(", "),
        quoted(asked.namespace)
    );
    Skipped::new(Skip::ConflictingPools, message)
}
