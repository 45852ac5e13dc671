//! From a configuration to a plan on this machine: what `mount`, `run` and `bench` share.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use siding_crds::plan::NodePlan;
use siding_crds::reasons::Reason;
use siding_fabric::{Pages, UringDomain, base_page_bytes};

use crate::config::{Cap, Config, Order, Page, Segment};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::mount::choose::{self, Chosen, Directory, Form, Lack, Ledger, Wish};
use crate::mount::machine::Machine;
use crate::mount::plan::{self, Auto, Backing, MountPlan, SegmentPlan};
use crate::node_plan;
use crate::registration::backend::{self, Choice};
use crate::registration::items::ItemOrder;
use crate::store::{self, Finding, KeptFile, Store};

/// The cap that is wished for and where it comes from: what is written out wins over the
/// environment, that over auto.
pub(super) fn cap(config: &Config, environment: &Environment, field: &str) -> (Cap, String) {
    if config.registration.cap != Cap::Auto {
        return (config.registration.cap, field.to_owned());
    }
    let (cap, warning) = Cap::from_environment(environment.max_concurrent_reg_mr.as_deref());
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    (cap, "MC_MAX_CONCURRENT_REG_MR".to_owned())
}

/// The same, where a node's plan decides what would be auto.
pub(super) fn by_plan(wished: (Cap, String), plan: Option<&NodePlan>) -> (Cap, String) {
    match (&wished.0, plan) {
        (Cap::Auto, Some(plan)) => (
            Cap::Limit(node_plan::cap_of(plan)),
            node_plan::source_of(plan),
        ),
        _ => wished,
    }
}

/// Plans a mount of the configured segments; `left` is what earlier processes left of each.
pub(super) fn plan(
    config: &Config,
    machine: &Machine,
    left: &[Finding],
    form: &dyn Fn(&Segment) -> Result<Form, Lack>,
    (cap, cap_source): (Cap, String),
) -> Result<MountPlan, Failure> {
    let total = config
        .segments
        .iter()
        .map(|segment| segment.size.get())
        .sum();
    let pin_limit = machine.pin_limit_bytes();
    let backend = backend::choose(
        config.registration.backend,
        total,
        pin_limit,
        UringDomain::open,
    )
    .map_err(Failure::from)?;
    let registers_all = pin_limit.is_none_or(|limit| limit >= total);
    let mut ledger = Ledger::default();
    let mut lacks: Vec<Lack> = Vec::new();
    let mut segments = Vec::new();
    for (segment, left) in config.segments.iter().zip(left) {
        let chosen = match left {
            Finding::Kept(kept) => again(segment, kept, machine).map(|chosen| (chosen, None)),
            Finding::Unfit(_) | Finding::Nothing => form(segment).and_then(|form| {
                let wish = wish(segment, form);
                let chosen = choose::choose(&wish, machine, &mut ledger)?;
                let auto = Auto::of(wish, &chosen);
                Ok((chosen, auto))
            }),
        };
        let (chosen, auto) = match chosen {
            Ok(chosen) => chosen,
            Err(lack) => {
                lacks.push(lack);
                continue;
            }
        };
        let threads = plan::touch_threads(
            config.registration.touch_threads,
            chosen.cpus.as_deref(),
            machine,
        );
        let size_bytes = segment.size.get();
        let strategy = plan::strategy_for(
            size_bytes,
            &chosen,
            threads,
            &backend,
            registers_all,
            matches!(left, Finding::Kept(_)),
            auto.is_some(),
        );
        segments.push(SegmentPlan {
            name: segment.name.clone(),
            size_bytes,
            pages: chosen.pages,
            page_reason: chosen.reason,
            placement: chosen.placement,
            cpus: chosen.cpus,
            backing: backing(left, chosen.directory),
            strategy,
            auto,
        });
    }
    if let Some(first) = lacks.first() {
        let lines: Vec<String> = lacks.iter().map(Lack::to_string).collect();
        return Err(Failure::lacking(lines.join("\n")).because(first.reason));
    }
    enough_files(total, &backend, machine)?;
    Ok(MountPlan {
        segments,
        backend,
        cap: plan::live_cap(cap, &cap_source, machine),
        order: match config.registration.order {
            Order::Ascending => ItemOrder::Ascending,
            Order::Declared => ItemOrder::Declared,
        },
        pin_limit_bytes: pin_limit,
    })
}

fn wish<'a>(segment: &'a Segment, form: Form) -> Wish<'a> {
    Wish {
        name: &segment.name,
        size_bytes: segment.size.get(),
        page: segment.page,
        numa: segment.numa,
        form,
        refused: &[],
    }
}

/// A kept file needs no page that it has not got: only its place on the machine is looked up.
fn again(segment: &Segment, kept: &KeptFile, machine: &Machine) -> Result<Chosen, Lack> {
    let mut chosen = choose::placed(&wish(segment, Form::Process), machine)?;
    chosen.pages = kept.pages();
    chosen.reason = "kept by an earlier process".to_owned();
    Ok(chosen)
}

fn backing(left: &Finding, directory: Option<PathBuf>) -> Backing {
    match (left, directory) {
        (Finding::Kept(kept), _) => Backing::Kept(kept.clone()),
        (Finding::Unfit(unfit), Some(directory)) => Backing::NewFile {
            directory,
            replaced: Some(unfit.clone()),
        },
        (Finding::Nothing, Some(directory)) => Backing::NewFile {
            directory,
            replaced: None,
        },
        (_, None) => Backing::Process,
    }
}

/// Each region holds a file descriptor: too few are told before anything is touched.
fn enough_files(total: u64, backend: &Choice, machine: &Machine) -> Result<(), Failure> {
    const OTHERS: u64 = 64;
    let Some(largest) = backend
        .in_use
        .domains()
        .iter()
        .map(|d| d.max_region_bytes())
        .min()
    else {
        return Ok(());
    };
    let needed = total.div_ceil(largest).saturating_add(OTHERS);
    match machine.files.filter(|files| *files < needed) {
        Some(files) => Err(Failure::lacking(format!(
            "RLIMIT_NOFILE allows {files} file descriptors, {needed} are needed for so many bytes; to mend it: \
             ulimit -n {needed}, or backend none"
        ))),
        None => Ok(()),
    }
}

/// Segments of this process's own memory.
pub(super) fn in_process(_: &Segment) -> Result<Form, Lack> {
    Ok(Form::Process)
}

/// Segments in files.
pub(super) fn in_files(segment: &Segment, store: &Store, machine: &Machine) -> Result<Form, Lack> {
    let lack = |field: String, what: String| Lack {
        field,
        what,
        remedy: "name a directory on tmpfs or hugetlbfs that this user may write".to_owned(),
        reason: Reason::Other,
    };
    let directory = |path: &Path, field: String| {
        let show = |error: io::Error| lack(field.clone(), format!("{}: {error}", path.display()));
        access(path, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| show(error.into()))?;
        let (filesystem, free_bytes) = store::room(path).map_err(show)?;
        Ok(Directory {
            path: path.to_owned(),
            filesystem,
            free_bytes,
        })
    };
    let field = || format!("segments[{}].directory", segment.name);
    let explicit = segment
        .directory
        .as_deref()
        .map(|path| directory(path, field()))
        .transpose()?;
    let mounts = machine.mounts.iter().filter(|mount| !mount.read_only);
    let huge = mounts
        .filter_map(|mount| directory(&mount.path, String::new()).ok())
        .collect();
    let storage = directory(store.directory(), "storage.directory".to_owned())?;
    Ok(Form::File {
        explicit,
        storage,
        huge,
        hint: store::some_tmpfs(),
    })
}

/// Looks up what earlier processes left for each segment. Nothing is changed.
pub(super) fn find_left(
    config: &Config,
    store: &Store,
    machine: &Machine,
) -> Result<Vec<Finding>, Failure> {
    let find = |segment: &Segment| {
        let directories = directories(segment, machine);
        store
            .find(
                &segment.name,
                segment.size.get(),
                named_pages(segment.page),
                &directories,
            )
            .map_err(|error| Failure::lacking(format!("segments[{}]: {error}", segment.name)))
    };
    config.segments.iter().map(find).collect()
}

/// Removes those of what did not pass that are complete, or those that are not, and tells.
pub(super) fn remove_unfit(
    config: &Config,
    store: &Store,
    left: &[Finding],
    complete: bool,
) -> Result<(), Failure> {
    for (segment, left) in config.segments.iter().zip(left) {
        let Finding::Unfit(unfit) = left else {
            continue;
        };
        if unfit.is_complete != complete {
            continue;
        }
        let files: Vec<_> = unfit
            .files
            .iter()
            .map(|f| f.display().to_string())
            .collect();
        store
            .remove(unfit)
            .map_err(|error| Failure::failed(format!("segments[{}]: {error}", segment.name)))?;
        tracing::warn!(
            segment = segment.name,
            files = files.join(" "),
            "removed what an earlier process left, its content is gone: {}",
            unfit.reason
        );
    }
    Ok(())
}

/// The machine as it will be once what did not pass is removed.
pub(super) fn with_credit(mut machine: Machine, left: &[Finding]) -> Machine {
    for finding in left {
        if let Finding::Unfit(unfit) = finding
            && unfit.is_complete
        {
            for (page_bytes, bytes) in &unfit.held {
                machine.credit(*page_bytes, *bytes);
            }
        }
    }
    machine
}

/// Pages that an explicit wish names; `None` where any will do.
fn named_pages(page: Page) -> Option<Pages> {
    match page {
        Page::Auto => None,
        Page::Transparent => Some(Pages::Transparent),
        Page::Size(bytes) if bytes == base_page_bytes() => Some(Pages::Base),
        Page::Size(bytes) => Some(Pages::Huge(bytes)),
    }
}

/// Where a file of the segment could lie, beside the store itself.
fn directories(segment: &Segment, machine: &Machine) -> Vec<PathBuf> {
    let writable = machine.mounts.iter().filter(|mount| !mount.read_only);
    segment
        .directory
        .clone()
        .into_iter()
        .chain(writable.map(|mount| mount.path.clone()))
        .collect()
}
