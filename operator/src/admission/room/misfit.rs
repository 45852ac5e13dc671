//! What LimitRanges give to the sidecar that does not go with it. Other containers have theirs already.

use siding_crds::reasons::Skip;

use super::super::amount::shown;
use super::load::{Given, Needs, Side, is_extended};
use super::{Broken, Change};

/// All that does not go with a sidecar.
pub(super) fn misfits<'a>(sidecar: &Needs<'a>) -> Vec<Broken<'a>> {
    let misfit = |given| useless(sidecar, given).or_else(|| too_small(sidecar, given));
    sidecar.given.iter().filter_map(misfit).collect()
}

/// A GPU, say, that the engine would lack. Without a limit beside its request the API server refuses it.
fn useless<'a>(sidecar: &Needs<'a>, given: &Given<'a>) -> Option<Broken<'a>> {
    let resource = given.resource;
    let is_exclusive = resource.starts_with("hugepages-") || is_extended(resource);
    let amount = sidecar.get(given.side, resource)?;
    (is_exclusive && amount > 0).then(|| Broken {
        reason: Skip::LimitRange,
        object: given.by,
        rule: ("default", given.side.as_str()),
        resource,
        what: format!(
            "gives the sidecar {} of {resource}, which it has no use for",
            shown(resource, amount)
        ),
        mend: format!("take {resource} out of its type Container"),
        sidecar: None,
    })
}

/// A limit below the request: the API server refuses it.
fn too_small<'a>(sidecar: &Needs<'a>, given: &Given<'a>) -> Option<Broken<'a>> {
    let resource = given.resource;
    let request = sidecar.get(Side::Request, resource)?;
    let limit = sidecar.get(Side::Limit, resource)?;
    let (request_told, limit_told) = (shown(resource, request), shown(resource, limit));
    (request > limit).then(|| Broken {
        reason: Skip::LimitRange,
        object: given.by,
        rule: ("default", given.side.as_str()),
        resource,
        what: format!(
            "gives the sidecar a limit of {limit_told} of {resource}, less than its request of {request_told}"
        ),
        mend: format!("raise its default.{resource} of type Container to {request_told}"),
        sidecar: Some((Change::Less, Side::Request, resource)),
    })
}
