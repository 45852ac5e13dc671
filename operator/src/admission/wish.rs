//! A pool, checked: the API server's rules may be older than the pool, and a pod must not be refused
//! because of one that can't work.

use siding_crds::api::{
    Backend, DeviceAccessMode, PageSize, PullPolicy, SegmentSpec, StorePool, StorePoolSpec,
};
use siding_crds::quantity::MAX_BYTES;
use siding_crds::reasons::Skip;
use siding_crds::{format_bytes, quoted};

use super::skip::Skipped;
use super::{Defaults, Footprint, amount, memory_bytes, select};

/// Characters of a label's value.
const LABEL_LENGTH: usize = 63;
/// Characters of a segment's name.
const SEGMENT_NAME_LENGTH: usize = 40;
/// The largest user that Kubernetes takes.
const MAX_USER: i64 = i32::MAX as i64;

/// What a pool asks for.
#[derive(Debug)]
pub(super) struct Wish<'a> {
    pub(super) pool: &'a str,
    pub(super) generation: i64,
    pub(super) spec: &'a StorePoolSpec,
    pub(super) segments: Vec<Segment<'a>>,
    pub(super) image: &'a str,
    pub(super) pull_policy: Option<PullPolicy>,
    /// Memory that the sidecar may use, huge pages apart.
    pub(super) memory_bytes: u64,
}

/// A segment with its size in bytes.
#[derive(Debug)]
pub(super) struct Segment<'a> {
    pub(super) spec: &'a SegmentSpec,
    pub(super) bytes: u64,
}

/// What each pod of a pool asks of its node, beside what its own containers ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Bytes of huge pages by their size, the smallest first.
    pub huge_pages: Vec<(PageSize, u64)>,
    /// Bytes of memory, segments on 4 KiB and transparent pages among them.
    pub memory_bytes: u64,
}

impl Demand {
    /// Of the pods of this pool.
    ///
    /// # Errors
    /// Why its pods get no sidecar: the message that they would carry.
    pub fn of(pool: &StorePool, defaults: &Defaults) -> Result<Self, String> {
        let of = || {
            select::selector(pool)?;
            Wish::of(pool, defaults)
        };
        let wish = of().map_err(|skipped| skipped.message)?;
        Ok(Self {
            huge_pages: wish.huge_pages(),
            memory_bytes: wish.memory_bytes,
        })
    }
}

impl<'a> Wish<'a> {
    pub(super) fn of(pool: &'a StorePool, defaults: &'a Defaults) -> Result<Self, Skipped> {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        let invalid = |what: String| {
            let message = format!("StorePool {}: {what}", quoted(name));
            Skipped::new(Skip::InvalidPool, message)
        };
        check_fields(name, &pool.spec).map_err(invalid)?;
        let segments = segments(&pool.spec.segments).map_err(invalid)?;
        let sidecar = &pool.spec.sidecar;
        let image = sidecar.image.as_deref().unwrap_or(&defaults.image);
        if image.is_empty() || image.trim() != image {
            let what = format!(
                "spec.sidecar.image: {} is not the name of an image",
                quoted(image)
            );
            return Err(invalid(what));
        }
        let mut wish = Self {
            pool: name,
            generation: pool.metadata.generation.unwrap_or_default(),
            spec: &pool.spec,
            segments,
            image,
            pull_policy: sidecar.image_pull_policy.or(defaults.image_pull_policy),
            memory_bytes: 0,
        };
        wish.memory_bytes = memory_bytes(&wish.footprint());
        if wish.memory_bytes > MAX_BYTES {
            return Err(invalid(
                "spec.segments: they are too large together".to_owned(),
            ));
        }
        Ok(wish)
    }

    /// Bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Bytes of the segments that are not on huge pages.
    pub(super) fn base_bytes(&self) -> u64 {
        let base = self
            .segments
            .iter()
            .filter(|segment| !segment.spec.page_size.is_huge());
        base.map(|segment| segment.bytes).sum()
    }

    /// Bytes on huge pages by their size, the smallest first.
    pub(super) fn huge_pages(&self) -> Vec<(PageSize, u64)> {
        let mut sizes: Vec<(PageSize, u64)> = Vec::new();
        for segment in self
            .segments
            .iter()
            .filter(|segment| segment.spec.page_size.is_huge())
        {
            match sizes
                .iter_mut()
                .find(|(page, _)| *page == segment.spec.page_size)
            {
                Some((_, bytes)) => *bytes += segment.bytes,
                None => sizes.push((segment.spec.page_size, segment.bytes)),
            }
        }
        sizes.sort_unstable_by_key(|(page, _)| page.bytes());
        sizes
    }

    fn footprint(&self) -> Footprint {
        let huge = self.huge_pages().into_iter();
        Footprint {
            base_bytes: self.base_bytes(),
            huge: huge.map(|(page, bytes)| (page.bytes(), bytes)).collect(),
            is_pinned: self.spec.registration.backend != Backend::None,
        }
    }
}

fn check_fields(name: &str, spec: &StorePoolSpec) -> Result<(), String> {
    if name.is_empty() || name.len() > LABEL_LENGTH {
        return Err(format!(
            "its name has {} characters; pods carry it in a label, which may have {LABEL_LENGTH}",
            name.len()
        ));
    }
    let sidecar = &spec.sidecar;
    if amount::parse(&sidecar.cpu).is_none_or(|cpu| cpu <= 0) {
        let cpu = quoted(&sidecar.cpu);
        return Err(format!(
            "spec.sidecar.cpu: {cpu} is not a quantity of CPUs; write for example 100m or 2"
        ));
    }
    if sidecar.http_port == 0 {
        return Err(
            "spec.sidecar.httpPort: 0 is no port that a probe could ask; write for example 9600"
                .to_owned(),
        );
    }
    if sidecar
        .run_as_user
        .is_some_and(|user| !(0..=MAX_USER).contains(&user))
    {
        return Err(format!(
            "spec.sidecar.runAsUser: users are from 0 to {MAX_USER}"
        ));
    }
    let access = &spec.device_access;
    let resource = access.resource.as_deref().unwrap_or_default();
    if access.mode == DeviceAccessMode::DevicePlugin
        && (!is_extended(resource) || access.count == 0)
    {
        return Err(format!(
            "spec.deviceAccess: {} of {} can't be asked for; write for example 1 of vpc.amazonaws.com/efa",
            access.count,
            quoted(resource)
        ));
    }
    Ok(())
}

/// Whether this is the name of a device plugin's resource.
fn is_extended(resource: &str) -> bool {
    let is_name = |part: &str| {
        let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let ends = part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.ends_with(|c: char| c.is_ascii_alphanumeric());
        part.len() <= LABEL_LENGTH && part.chars().all(is_known) && ends
    };
    let is_domain = |part: &str| {
        let is_known =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        !part.is_empty() && part.split('.').all(is_name) && part.chars().all(is_known)
    };
    match resource.split_once('/') {
        Some((domain, name)) => {
            is_domain(domain)
                && is_name(name)
                && !domain.ends_with("kubernetes.io")
                && !domain.starts_with("requests.")
        }
        None => false,
    }
}

fn segments(specs: &[SegmentSpec]) -> Result<Vec<Segment<'_>>, String> {
    if specs.is_empty() {
        return Err("spec.segments: it declares none".to_owned());
    }
    let mut segments: Vec<Segment<'_>> = Vec::with_capacity(specs.len());
    let mut total = 0_u64;
    for spec in specs {
        let field = format!("spec.segments[{}]", spec.name);
        if !is_segment_name(&spec.name) {
            return Err(format!(
                "spec.segments: {} is not a segment's name",
                quoted(&spec.name)
            ));
        }
        if segments.iter().any(|other| other.spec.name == spec.name) {
            return Err(format!("{field}: two have this name"));
        }
        let bytes = spec
            .size
            .bytes()
            .map_err(|error| format!("{field}.size: {error}"))?;
        let page = spec.page_size.bytes();
        if bytes == 0 || !bytes.is_multiple_of(page) {
            return Err(format!(
                "{field}.size: {} is not a whole number of pages of {}",
                quoted(&spec.size.to_string()),
                format_bytes(page)
            ));
        }
        let sum = total.checked_add(bytes).filter(|sum| *sum <= MAX_BYTES);
        total = sum.ok_or("spec.segments: they are too large together")?;
        segments.push(Segment { spec, bytes });
    }
    Ok(segments)
}

fn is_segment_name(name: &str) -> bool {
    let is_known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty()
        && name.len() <= SEGMENT_NAME_LENGTH
        && name.chars().all(is_known)
        && !name.starts_with('-')
        && !name.ends_with('-')
}
