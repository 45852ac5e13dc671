//! From a configuration to a plan on this machine: what `mount`, `run` and `bench` share.

use std::path::{Path, PathBuf};

use siding_fabric::{Pages, UringDomain, base_page_bytes};

use crate::config::{Cap, Config, Order, Page, Segment};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::mount::choose::{self, Chosen, Directory, Form, Lack, Ledger, Wish};
use crate::mount::machine::Machine;
use crate::mount::plan::{self, Backing, MountPlan, SegmentPlan};
use crate::registration::backend;
use crate::registration::items::ItemOrder;
use crate::store::{self, Finding, KeptFile, Store};

/// The cap in force and where it comes from: what is written out wins over the environment, that
/// over auto.
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

/// Plans a mount of the configured segments.
pub(super) fn plan(
    config: &Config,
    machine: &Machine,
    kept: &[Option<KeptFile>],
    in_files: bool,
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
    .map_err(Failure::lacking)?;
    let registers_all = pin_limit.is_none_or(|limit| limit >= total);
    let mut ledger = Ledger::default();
    let mut lacks = Vec::new();
    let mut segments = Vec::new();
    for (segment, kept) in config.segments.iter().zip(kept) {
        let chosen = match kept {
            Some(kept) => again(segment, kept, machine),
            None => form(segment, config, in_files)
                .and_then(|form| choose::choose(&wish(segment, form), machine, &mut ledger)),
        };
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(lack) => {
                lacks.push(lack.to_string());
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
            kept.is_some(),
        );
        segments.push(SegmentPlan {
            name: segment.name.clone(),
            size_bytes,
            pages: chosen.pages,
            page_reason: chosen.reason,
            placement: chosen.placement,
            cpus: chosen.cpus,
            backing: match (kept, chosen.directory) {
                (Some(kept), _) => Backing::Kept(kept.clone()),
                (None, Some(directory)) => Backing::NewFile { directory },
                (None, None) => Backing::Process,
            },
            strategy,
        });
    }
    if !lacks.is_empty() {
        return Err(Failure::lacking(lacks.join("\n")));
    }
    let (concurrency, cap_reason) = plan::concurrency(cap, &cap_source, machine);
    Ok(MountPlan {
        segments,
        backend,
        concurrency,
        cap_reason,
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
    }
}

/// A kept file needs no page that it has not got: only its place on the machine is looked up.
fn again(segment: &Segment, kept: &KeptFile, machine: &Machine) -> Result<Chosen, Lack> {
    let mut chosen = choose::placed(&wish(segment, Form::Process), machine)?;
    chosen.pages = kept.pages();
    chosen.reason = "kept by an earlier process".to_owned();
    Ok(chosen)
}

fn form(segment: &Segment, config: &Config, in_files: bool) -> Result<Form, Lack> {
    if !in_files {
        return Ok(Form::Process);
    }
    let directory = |path: &Path, field: String| {
        let filesystem = store::filesystem(path).map_err(|error| Lack {
            field,
            what: format!("{}: {error}", path.display()),
            remedy: "name a directory on tmpfs or hugetlbfs that can be read".to_owned(),
        })?;
        Ok(Directory {
            path: path.to_owned(),
            filesystem,
        })
    };
    let storage = directory(&config.storage.directory, "storage.directory".to_owned())?;
    let field = || format!("segments[{}].directory", segment.name);
    let explicit = segment
        .directory
        .as_deref()
        .map(|path| directory(path, field()))
        .transpose()?;
    Ok(Form::File { explicit, storage })
}

/// What earlier processes left.
pub(super) struct Left {
    /// For each segment, its file where it passed.
    pub(super) kept: Vec<Option<KeptFile>>,
    /// Something did not pass, and its pages are free again in a moment.
    pub(super) freed: bool,
}

/// Looks up what earlier processes left for each segment; what does not pass is gone afterwards.
pub(super) fn find_left(
    config: &Config,
    store: &Store,
    machine: &Machine,
) -> Result<Left, Failure> {
    let mut freed = false;
    let kept: Result<_, Failure> = config
        .segments
        .iter()
        .map(|segment| {
            let directories = directories(segment, config, machine);
            let pages = named_pages(segment.page);
            let found = store
                .find(&segment.name, segment.size.get(), pages, &directories)
                .map_err(|error| Failure::failed(format!("segments[{}]: {error}", segment.name)))?;
            Ok(match found {
                Finding::Kept(kept) => {
                    tracing::info!(segment = segment.name, "found its file: content is kept");
                    Some(kept)
                }
                Finding::Unlinked { file, reason } => {
                    let file = file.display().to_string();
                    tracing::warn!(
                        segment = segment.name,
                        file,
                        "removed what an earlier process left: {reason}"
                    );
                    freed = true;
                    None
                }
                Finding::Nothing => None,
            })
        })
        .collect();
    Ok(Left { kept: kept?, freed })
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

/// Where a file of the segment could lie.
fn directories(segment: &Segment, config: &Config, machine: &Machine) -> Vec<PathBuf> {
    let mut directories = vec![config.storage.directory.clone()];
    directories.extend(segment.directory.clone());
    let writable = machine.mounts.iter().filter(|mount| !mount.read_only);
    directories.extend(writable.map(|mount| mount.path.clone()));
    directories
}
