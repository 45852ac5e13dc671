//! Which pages a segment gets, and where: pure over what the machine can give.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use siding_crds::format_bytes;
use siding_crds::reasons::Reason;
use siding_fabric::{Pages, Placement, base_page_bytes};
use siding_topology::cgroup::Limit;
use siding_topology::memory::{ShmemMode, TransparentMode};
use siding_topology::size::{binary, page_name};

use super::machine::Machine;
use crate::config::{Numa, Page};

/// Base pages are joined to pages of this size, bytes.
const JOINED_BYTES: u64 = 2 << 20;

/// Something that the machine lacks, with what mends it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Lack {
    /// The field at fault, e.g. `segments[kv].size`.
    pub field: String,
    /// What is missing.
    pub what: String,
    /// The command or field that mends it.
    pub remedy: String,
    /// Why, one word.
    pub reason: Reason,
}

impl Lack {
    /// The same, for this reason.
    #[must_use]
    pub fn because(mut self, reason: Reason) -> Self {
        self.reason = reason;
        self
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}; to mend it: {}",
            self.field, self.what, self.remedy
        )
    }
}

/// What a directory is on, as far as segments care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filesystem {
    /// hugetlbfs with pages of so many bytes.
    Hugetlbfs {
        /// Its page size, bytes.
        page_bytes: u64,
    },
    /// tmpfs: memory.
    Tmpfs,
    /// Anything else, e.g. a disk.
    Other,
}

/// A directory and what it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Its path.
    pub path: PathBuf,
    /// What it is on.
    pub filesystem: Filesystem,
    /// Bytes that the file system still takes; `None` where it has no limit of its own.
    pub free_bytes: Option<u64>,
}

/// In which form a segment is mounted.
#[derive(Debug, Clone)]
pub enum Form {
    /// Memory of this process.
    Process,
    /// A file that outlives the process.
    File {
        /// The segment's own directory, where it names one.
        explicit: Option<Directory>,
        /// The directory for segments without one.
        storage: Directory,
        /// The hugetlbfs mounts that can be written.
        huge: Vec<Directory>,
        /// A directory on tmpfs, for a hint.
        hint: Option<PathBuf>,
    },
}

/// A segment as asked for.
#[derive(Debug, Clone)]
pub struct Wish<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// The pages asked for.
    pub page: Page,
    /// Where it shall lie.
    pub numa: Numa,
    /// In which form.
    pub form: Form,
    /// Huge pages that the kernel refused when they were asked for.
    pub refused: &'a [Refusal],
}

/// Huge pages that looked free and were refused all the same: a limit that is not seen from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Size of a page, bytes.
    pub page_bytes: u64,
    /// The kernel's answer.
    pub why: String,
}

/// What it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The pages.
    pub pages: Pages,
    /// Why these and not larger ones.
    pub reason: String,
    /// Where they lie.
    pub placement: Placement,
    /// CPUs to touch from, where the node matters.
    pub cpus: Option<Vec<u32>>,
    /// The directory of its file, where it is one.
    pub directory: Option<PathBuf>,
}

/// What earlier segments of the same mount have claimed.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    pages: BTreeMap<u64, u64>,
    node_pages: BTreeMap<(u64, u32), u64>,
    memory_bytes: u64,
    files: BTreeMap<PathBuf, u64>,
}

impl Ledger {
    /// Huge pages of this size claimed so far.
    #[must_use]
    pub fn pages(&self, page_bytes: u64) -> u64 {
        self.pages.get(&page_bytes).copied().unwrap_or(0)
    }

    /// Notes what a segment takes.
    pub fn claim(
        &mut self,
        size_bytes: u64,
        pages: Pages,
        placement: &Placement,
        directory: Option<&Path>,
    ) {
        if let Some(directory) = directory {
            *self.files.entry(directory.to_owned()).or_insert(0) += size_bytes;
        }
        let Pages::Huge(page) = pages else {
            self.memory_bytes = self.memory_bytes.saturating_add(with_overhead(size_bytes));
            return;
        };
        *self.pages.entry(page).or_insert(0) += size_bytes / page;
        if let Placement::Bind(node) = placement {
            *self.node_pages.entry((page, *node)).or_insert(0) += size_bytes / page;
        }
    }
}

/// What a segment of base or transparent pages takes of memory, bytes: itself, its page tables (8
/// bytes a page), the kernel's note of each pinned page (16 bytes), and what the process is beside.
#[must_use]
pub fn with_overhead(size_bytes: u64) -> u64 {
    const PROCESS_BYTES: u64 = 24 << 20;
    let pages = size_bytes / base_page_bytes();
    size_bytes
        .saturating_add(pages.saturating_mul(8 + 16))
        .saturating_add(PROCESS_BYTES)
}

/// The name that users and metrics see for pages.
#[must_use]
pub fn pages_name(pages: Pages) -> String {
    match pages {
        Pages::Base => page_name(base_page_bytes()),
        Pages::Transparent => "transparent".to_owned(),
        Pages::Huge(bytes) => page_name(bytes),
    }
}

/// Chooses for one segment and claims it in the ledger.
///
/// # Errors
/// The [`Lack`] that stands in the way of what was asked for; with `auto` that of base pages.
pub fn choose(wish: &Wish<'_>, machine: &Machine, ledger: &mut Ledger) -> Result<Chosen, Lack> {
    let placement = place(wish, machine)?;
    let case = Case {
        wish,
        machine,
        ledger,
        placement: &placement,
    };
    let (pages, directory, reason) = match wish.page {
        Page::Auto => case.best()?,
        page => {
            let pages = case.named(page)?;
            (pages, case.fits(pages)?, "as asked for".to_owned())
        }
    };
    let cpus = touching_cpus(&placement, machine);
    let chosen = Chosen {
        pages,
        reason,
        placement,
        cpus,
        directory,
    };
    ledger.claim(
        wish.size_bytes,
        chosen.pages,
        &chosen.placement,
        chosen.directory.as_deref(),
    );
    Ok(chosen)
}

/// Where a segment lies on this machine, whatever its pages: for a file that has them already.
///
/// # Errors
/// The [`Lack`] of the node that was asked for.
pub fn placed(wish: &Wish<'_>, machine: &Machine) -> Result<Chosen, Lack> {
    let placement = place(wish, machine)?;
    let cpus = touching_cpus(&placement, machine);
    Ok(Chosen {
        pages: Pages::Base,
        reason: String::new(),
        placement,
        cpus,
        directory: None,
    })
}

/// Turns the wish into a placement on this machine's nodes.
fn place(wish: &Wish<'_>, machine: &Machine) -> Result<Placement, Lack> {
    match wish.numa {
        Numa::Local => Ok(machine
            .home_node()
            .map_or(Placement::Any, Placement::Preferred)),
        Numa::Interleave => {
            let has_memory = |bytes: Option<u64>| bytes.is_none_or(|bytes| bytes > 0);
            let nodes: Vec<u32> = machine
                .nodes
                .iter()
                .filter(|node| has_memory(node.memory_total_bytes))
                .map(|node| node.id)
                .collect();
            Ok(if nodes.len() < 2 {
                Placement::Any
            } else {
                Placement::Interleave(nodes)
            })
        }
        Numa::Node(0) if machine.nodes.is_empty() => Ok(Placement::Any),
        Numa::Node(id) if machine.node(id).is_some() && machine.nodes.len() == 1 => {
            Ok(Placement::Any)
        }
        Numa::Node(id) if machine.node(id).is_some() => Ok(Placement::Bind(id)),
        Numa::Node(id) => {
            let ids: Vec<String> = machine
                .nodes
                .iter()
                .map(|node| node.id.to_string())
                .collect();
            let ids = if ids.is_empty() {
                "0".to_owned()
            } else {
                ids.join(", ")
            };
            Err(Lack {
                field: format!("segments[{}].numa", wish.name),
                what: format!("this machine has no NUMA node {id}"),
                remedy: format!("use one of: {ids}, local, interleave"),
                reason: Reason::InvalidConfiguration,
            })
        }
    }
}

/// Own CPUs of the node that the pages lie on; `None` where the node does not matter.
fn touching_cpus(placement: &Placement, machine: &Machine) -> Option<Vec<u32>> {
    let (Placement::Preferred(id) | Placement::Bind(id)) = placement else {
        return None;
    };
    if machine.nodes.len() < 2 {
        return None;
    }
    let cpus: Vec<u32> = machine
        .node(*id)?
        .cpus
        .as_ref()?
        .intersect(&machine.cores.cpus)
        .iter()
        .collect();
    (!cpus.is_empty()).then_some(cpus)
}

struct Case<'a> {
    wish: &'a Wish<'a>,
    machine: &'a Machine,
    ledger: &'a Ledger,
    placement: &'a Placement,
}

impl Case<'_> {
    /// The largest pages that fit, and why no larger ones.
    fn best(&self) -> Result<(Pages, Option<PathBuf>, String), Lack> {
        let huge = self
            .machine
            .pools
            .iter()
            .rev()
            .map(|pool| Pages::Huge(pool.page_bytes));
        let mut passed_over = Vec::new();
        let mut last = None;
        for pages in huge.chain([Pages::Transparent, Pages::Base]) {
            match self.fits(pages) {
                Ok(directory) => {
                    let reason = if passed_over.is_empty() {
                        "the largest pages that this kernel has".to_owned()
                    } else {
                        format!(
                            "the largest that can be had now ({})",
                            passed_over.join("; ")
                        )
                    };
                    return Ok((pages, directory, reason));
                }
                Err(lack) => {
                    passed_over.push(format!("{}: {}", pages_name(pages), lack.what));
                    last = Some(lack);
                }
            }
        }
        Err(last.unwrap_or_else(|| self.lack("page", "no pages", "file a bug")))
    }

    /// The pages that an explicit wish names.
    fn named(&self, page: Page) -> Result<Pages, Lack> {
        match page {
            Page::Size(bytes) if bytes == base_page_bytes() => Ok(Pages::Base),
            Page::Size(bytes) if self.machine.pool(bytes).is_some() => Ok(Pages::Huge(bytes)),
            Page::Size(bytes) => {
                let mut names = vec![page_name(base_page_bytes())];
                names.extend(
                    self.machine
                        .pools
                        .iter()
                        .map(|pool| page_name(pool.page_bytes)),
                );
                let what = if self.machine.pools.is_empty() {
                    "no huge-page pools can be seen in /sys/kernel/mm/hugepages".to_owned()
                } else {
                    format!("this kernel has no pages of {}", page_name(bytes))
                };
                let remedy = format!("use one of: auto, transparent, {}", names.join(", "));
                Err(self.lack("page", what, remedy))
            }
            Page::Transparent | Page::Auto => Ok(Pages::Transparent),
        }
    }

    /// Whether these pages can be had, and in which directory.
    fn fits(&self, pages: Pages) -> Result<Option<PathBuf>, Lack> {
        self.is_whole(pages)?;
        let directory = self.directory(pages)?;
        match pages {
            Pages::Huge(bytes) => self.has_huge_pages(bytes)?,
            Pages::Transparent => {
                self.has_transparent()?;
                self.has_memory()?;
            }
            Pages::Base => self.has_memory()?,
        }
        Ok(directory)
    }

    fn is_whole(&self, pages: Pages) -> Result<(), Lack> {
        let (page, size) = (pages.page_bytes(), self.wish.size_bytes);
        if size > 0 && size.is_multiple_of(page) {
            return Ok(());
        }
        let below = size / page * page;
        let above = below.checked_add(page).map(binary);
        let near: Vec<String> = (below > 0)
            .then(|| binary(below))
            .into_iter()
            .chain(above)
            .collect();
        let what = format!("{} is not a multiple of {}", binary(size), page_name(page));
        let lack = self.lack("size", what, format!("use {}", near.join(" or ")));
        Err(lack.because(Reason::InvalidConfiguration))
    }

    fn has_huge_pages(&self, page: u64) -> Result<(), Lack> {
        let name = page_name(page);
        let Some(pool) = self.machine.pool(page) else {
            return Err(self.short(
                Reason::HugePagesShort,
                "page",
                format!("this kernel has no pages of {name}"),
                "use auto",
            ));
        };
        let refusal = |refusal: &&Refusal| refusal.page_bytes == page;
        if let Some(Refusal { why, .. }) = self.wish.refused.iter().find(refusal) {
            let what =
                format!("the kernel refused them, a limit that is not seen from here: {why}");
            return Err(self.short(
                Reason::HugePagesShort,
                "page",
                what,
                format!("raise the limit of hugepages-{name}, or page auto"),
            ));
        }
        let needed = self.wish.size_bytes / page;
        let free = pool.available().saturating_sub(self.ledger.pages(page));
        let sysfs = format!("hugepages-{}kB/nr_hugepages", page / 1024);
        let reserve = match self.wish.form {
            Form::Process => " (or --reserve)",
            Form::File { .. } => "",
        };
        if free < needed {
            let total = pool.total.saturating_add(needed - free);
            return Err(self.short(
                Reason::HugePagesShort,
                "page",
                format!("{needed} free pages of {name} are needed, {free} are there"),
                format!("echo {total} | sudo tee /sys/kernel/mm/hugepages/{sysfs}{reserve}, or page auto"),
            ));
        }
        if let Placement::Bind(node) = self.placement {
            let there = pool.nodes.iter().find(|n| n.node == *node);
            let claimed = self
                .ledger
                .node_pages
                .get(&(page, *node))
                .copied()
                .unwrap_or(0);
            let free = there.map_or(0, |n| n.free).saturating_sub(claimed);
            if free < needed {
                let total = there.map_or(0, |n| n.total).saturating_add(needed - free);
                return Err(self.short(
                Reason::HugePagesShort,
                    "numa",
                    format!("{needed} free pages of {name} are needed on node {node}, {free} are there"),
                    format!("echo {total} | sudo tee /sys/devices/system/node/node{node}/hugepages/{sysfs}, or numa local"),
                ));
            }
        }
        let claimed = self.ledger.pages(page).saturating_mul(page);
        let limit = self.machine.hugetlb_limits.get(&page);
        self.within(
            limit,
            self.wish.size_bytes,
            claimed,
            &format!("hugepages-{name}"),
        )
    }

    fn has_transparent(&self) -> Result<(), Lack> {
        if self.wish.page == Page::Auto && self.wish.size_bytes < JOINED_BYTES {
            let what = format!("{} hold no joined page", binary(self.wish.size_bytes));
            return Err(self.lack("size", what, "declare at least 2Mi"));
        }
        let (off, file, word) = match self.wish.form {
            Form::Process => {
                let off = self
                    .machine
                    .transparent
                    .map(|mode| mode == TransparentMode::Never);
                (off, "enabled", "madvise")
            }
            Form::File { .. } => {
                let off = |mode| matches!(mode, ShmemMode::Never | ShmemMode::Deny);
                (
                    self.machine.shmem_transparent.map(off),
                    "shmem_enabled",
                    "advise",
                )
            }
        };
        let sysfs = format!("/sys/kernel/mm/transparent_hugepage/{file}");
        match off {
            Some(true) => Err(self.lack(
                "page",
                format!("transparent huge pages are off here ({sysfs})"),
                format!("echo {word} | sudo tee {sysfs}, or use 4Ki or auto"),
            )),
            None => Err(self.lack(
                "page",
                "this kernel has no transparent huge pages",
                "use 4Ki or auto",
            )),
            Some(false) => Ok(()),
        }
    }

    fn has_memory(&self) -> Result<(), Lack> {
        let size = with_overhead(self.wish.size_bytes);
        if let Some(available) = self.machine.available_bytes {
            let free = available.saturating_sub(self.ledger.memory_bytes);
            if free < size {
                return Err(self.short(
                Reason::MemoryShort,
                    "size",
                    format!("{} are needed ({size} bytes with page tables and notes of pins), {free} bytes of memory are available", binary(self.wish.size_bytes)),
                    "declare less, or free memory",
                ));
            }
        }
        if let Placement::Bind(node) = self.placement
            && let Some(there) = self
                .machine
                .node(*node)
                .and_then(|n| n.memory_available_bytes)
            && there < size
        {
            return Err(self.short(
                Reason::MemoryShort,
                "numa",
                format!(
                    "{size} bytes are needed on node {node}, {there} bytes are available there"
                ),
                "declare less, or numa local",
            ));
        }
        self.within(
            self.machine.memory_limit.as_ref(),
            size,
            self.ledger.memory_bytes,
            "memory",
        )
    }

    /// Whether a cgroup limit leaves room for so many bytes.
    fn within(
        &self,
        limit: Option<&Limit>,
        needed: u64,
        claimed: u64,
        resource: &str,
    ) -> Result<(), Lack> {
        let Some(limit) = limit else { return Ok(()) };
        let room = limit
            .limit_bytes
            .saturating_sub(limit.usage_bytes)
            .saturating_sub(claimed);
        if room >= needed {
            return Ok(());
        }
        let wanted = limit.limit_bytes.saturating_add(needed - room);
        let lack = self.lack(
            "size",
            format!(
                "{needed} bytes are needed, the cgroup limit leaves {room} bytes of {resource}"
            ),
            format!(
                "raise the container's resources.limits.{resource} to {} (or {})",
                format_bytes(wanted),
                limit.file.display()
            ),
        );
        Err(lack.because(Reason::MemoryLimit))
    }

    /// The directory for a file of these pages, `None` where it is no file.
    fn directory(&self, pages: Pages) -> Result<Option<PathBuf>, Lack> {
        let Form::File {
            explicit,
            storage,
            huge,
            hint,
        } = &self.wish.form
        else {
            return Ok(None);
        };
        let wanted = match pages {
            Pages::Huge(page_bytes) => Filesystem::Hugetlbfs { page_bytes },
            Pages::Base | Pages::Transparent => Filesystem::Tmpfs,
        };
        let directory = match (explicit, pages) {
            (Some(directory), _) => {
                self.suits(directory, wanted, pages, "directory", hint.as_deref())?
            }
            (None, Pages::Huge(page_bytes)) => huge
                .iter()
                .find(|directory| directory.filesystem == wanted)
                .ok_or_else(|| self.no_hugetlbfs(page_bytes))?,
            (None, _) => {
                self.suits(storage, wanted, pages, "storage.directory", hint.as_deref())?
            }
        };
        self.has_room(directory)?;
        Ok(Some(directory.path.clone()))
    }

    fn no_hugetlbfs(&self, page_bytes: u64) -> Lack {
        let name = page_name(page_bytes);
        self.lack(
            "page",
            format!("no hugetlbfs with pages of {name} is mounted that this user may write"),
            format!(
                "sudo mkdir -p /dev/hugepages-{name} && sudo mount -t hugetlbfs -o pagesize={page_bytes},uid=$(id -u) \
                 none /dev/hugepages-{name} (in a pod: an emptyDir of medium HugePages-{name})"
            ),
        )
    }

    /// Whether the file system's own limit leaves room.
    fn has_room(&self, directory: &Directory) -> Result<(), Lack> {
        let claimed = self.ledger.files.get(&directory.path).copied().unwrap_or(0);
        match directory.free_bytes.map(|free| free.saturating_sub(claimed)) {
            Some(free) if free < self.wish.size_bytes => Err(self.short(
                match directory.filesystem {
                    Filesystem::Hugetlbfs { .. } => Reason::HugePagesShort,
                    Filesystem::Tmpfs | Filesystem::Other => Reason::MemoryShort,
                },
                "size",
                format!(
                    "{} are needed, the file system of {} has {free} bytes left",
                    binary(self.wish.size_bytes),
                    show(&directory.path)
                ),
                "declare less, or mount it with a larger size= (in a pod: the emptyDir's sizeLimit)",
            )),
            _ => Ok(()),
        }
    }

    fn suits<'d>(
        &self,
        directory: &'d Directory,
        wanted: Filesystem,
        pages: Pages,
        field: &str,
        hint: Option<&Path>,
    ) -> Result<&'d Directory, Lack> {
        if directory.filesystem == wanted {
            return Ok(directory);
        }
        let (kind, remedy) = match wanted {
            Filesystem::Hugetlbfs { page_bytes } => (
                format!("hugetlbfs with pages of {}", page_name(page_bytes)),
                format!("mount one: sudo mount -t hugetlbfs -o pagesize={page_bytes} none DIR"),
            ),
            _ => (
                "tmpfs".to_owned(),
                match hint {
                    Some(hint) => format!("use a directory in {}, or mount a tmpfs", show(hint)),
                    None => "mount a tmpfs: sudo mount -t tmpfs none DIR".to_owned(),
                },
            ),
        };
        let what = format!(
            "segments of {} pages need {kind}, and {} is not on one",
            pages_name(pages),
            show(&directory.path)
        );
        Err(self.lack(field, what, remedy))
    }

    fn short(
        &self,
        reason: Reason,
        field: &str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Lack {
        self.lack(field, what, remedy).because(reason)
    }

    fn lack(&self, field: &str, what: impl Into<String>, remedy: impl Into<String>) -> Lack {
        let field = if field.contains('.') {
            field.to_owned()
        } else {
            format!("segments[{}].{field}", self.wish.name)
        };
        Lack {
            field,
            what: what.into(),
            remedy: remedy.into(),
            reason: Reason::Other,
        }
    }
}

fn show(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
pub(crate) mod tests;
