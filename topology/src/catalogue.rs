//! The instance catalogue: what clouds publish of their GPU nodes, for what a node's own tree does
//! not show. The data are `data/instances.tsv` and `data/factors.tsv`; what is attached to a node
//! always beats what they say.

use std::num::NonZeroUsize;

use crate::factor::Factor;
use crate::fields;
use crate::pci::PciAddress;
use crate::split::shares;

const INSTANCES: &str = include_str!("../data/instances.tsv");
const FACTORS: &str = include_str!("../data/factors.tsv");

/// What the column `nic` says of NICs that no segment can be registered on.
const NOT_RDMA: &str = "not verbs";

/// The published rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    entries: Vec<CatalogueEntry>,
}

/// What is published of one instance type; `None` is *not published or not verified*, never 0.
#[derive(Clone, Debug, PartialEq)]
pub struct CatalogueEntry {
    /// Its name (`p5.48xlarge`).
    pub instance_type: String,
    /// Its hardware threads.
    pub vcpus: Option<NonZeroUsize>,
    /// Its NUMA nodes.
    pub numa: Option<NonZeroUsize>,
    /// Its GPUs or other accelerators; 0 where it is known to have none.
    pub gpus: Option<usize>,
    /// Their model, in the publisher's words.
    pub gpu: Option<String>,
    /// Its NICs that can do RDMA; 0 where it is known to have none.
    pub nics: Option<usize>,
    /// Their model, in the publisher's words.
    pub nic: Option<String>,
    /// How NICs and GPUs belong together.
    pub nics_per_gpu: Option<NicsPerGpu>,
    /// Which NICs belong to which GPUs.
    pub layout: Option<Layout>,
    /// The planner's factor, where the default is known not to fit.
    pub factor: Option<FactorOverride>,
}

/// How many NICs a GPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicsPerGpu {
    /// So many of its own.
    Own(NonZeroUsize),
    /// So many NICs for so many GPUs.
    Ratio {
        /// NICs of a group.
        nics: NonZeroUsize,
        /// GPUs of the group.
        gpus: NonZeroUsize,
    },
    /// Shared, in a proportion that is not published.
    Shared,
    /// Every GPU uses every NIC.
    AllShare,
}

/// Which NICs belong to which GPUs, by PCI address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// GPUs and the NICs that are theirs together.
    pub groups: Vec<Group>,
}

/// GPUs and the NICs that are theirs together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Which NUMA node it is on: the first that is published is 0.
    pub numa: u32,
    /// The GPUs, ascending.
    pub gpus: Vec<PciAddress>,
    /// The NICs, ascending.
    pub nics: Vec<PciAddress>,
}

/// A factor of one instance type.
#[derive(Clone, Debug, PartialEq)]
pub struct FactorOverride {
    /// The factor.
    pub factor: Factor,
    /// Where it comes from.
    pub why: String,
}

impl Catalogue {
    /// The one that comes with this crate.
    #[must_use]
    pub fn published() -> Self {
        Self::parse(INSTANCES, FACTORS)
    }

    /// Reads tables of the form of `data/instances.tsv` and `data/factors.tsv`. A value that can't
    /// be read is `None`; a factor of a type that has no row is left out.
    #[must_use]
    pub fn parse(instances: &str, factors: &str) -> Self {
        let rows: Vec<Row<'_>> = rows(instances).filter_map(Row::new).collect();
        let factors: Vec<_> = rows_of_factors(factors).collect();
        let entry = |row: &Row<'_>| {
            let mut entry = row.entry(&rows);
            let mut factors = factors.iter();
            let own = factors.find(|(name, _)| *name == entry.instance_type);
            entry.factor = own.map(|(_, factor)| factor.clone());
            entry
        };
        Self {
            entries: rows.iter().map(entry).collect(),
        }
    }

    /// What is published of an instance type.
    #[must_use]
    pub fn entry(&self, instance_type: &str) -> Option<&CatalogueEntry> {
        self.entries
            .iter()
            .find(|entry| entry.instance_type == instance_type)
    }

    /// All of it, in the order published.
    #[must_use]
    pub fn entries(&self) -> &[CatalogueEntry] {
        &self.entries
    }
}

impl CatalogueEntry {
    /// Whether its NICs are EFA.
    #[must_use]
    pub fn has_efa(&self) -> bool {
        let nic = self.nic.as_deref().unwrap_or_default();
        nic.split(' ').next() == Some("EFA")
    }

    /// The group of a GPU.
    #[must_use]
    pub fn group_of(&self, gpu: PciAddress) -> Option<&Group> {
        let groups = &self.layout.as_ref()?.groups;
        groups.iter().find(|group| group.gpus.contains(&gpu))
    }
}

impl Group {
    /// The NICs that are a GPU's when the group's are divided; none where it is not of the group.
    #[must_use]
    pub fn nics_of(&self, gpu: PciAddress) -> Vec<PciAddress> {
        let Some(index) = self.gpus.iter().position(|other| *other == gpu) else {
            return Vec::new();
        };
        shares(&self.nics, self.gpus.len())
            .nth(index)
            .map_or_else(Vec::new, <[PciAddress]>::to_vec)
    }
}

/// The fields of each line that is no comment, the line of names left out.
fn rows(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .skip(1)
        .map(|line| line.split('\t').map(str::trim).collect())
}

fn rows_of_factors(table: &str) -> impl Iterator<Item = (&str, FactorOverride)> {
    rows(table).filter_map(|fields| {
        let factor = fields.get(1)?.parse().ok()?;
        let why = (*fields.get(2)?).to_owned();
        Some((*fields.first()?, FactorOverride { factor, why }))
    })
}

/// A row's fields by their name.
struct Row<'a> {
    instance_type: &'a str,
    fields: Vec<&'a str>,
}

impl<'a> Row<'a> {
    fn new(fields: Vec<&'a str>) -> Option<Self> {
        let instance_type = *fields.first().filter(|name| !name.is_empty())?;
        Some(Self {
            instance_type,
            fields,
        })
    }

    fn entry(&self, rows: &[Self]) -> CatalogueEntry {
        CatalogueEntry {
            instance_type: self.instance_type.to_owned(),
            vcpus: self.count(1).and_then(NonZeroUsize::new),
            numa: self.count(2).and_then(NonZeroUsize::new),
            gpus: self.count(3),
            gpu: self.words(4),
            nics: self.rdma_nics(),
            nic: self.words(6),
            nics_per_gpu: self.field(7).and_then(nics_per_gpu),
            layout: self.layout(rows),
            factor: None,
        }
    }

    /// A field that says something.
    fn field(&self, index: usize) -> Option<&'a str> {
        let field = *self.fields.get(index)?;
        (!matches!(field, "" | "?" | "-")).then_some(field)
    }

    /// Its NICs, none of them where they are told to be no RDMA devices.
    fn rdma_nics(&self) -> Option<usize> {
        let is_none = self.field(6).is_some_and(|nic| nic.contains(NOT_RDMA));
        if is_none { Some(0) } else { self.count(5) }
    }

    fn words(&self, index: usize) -> Option<String> {
        self.field(index).map(str::to_owned)
    }

    fn count(&self, index: usize) -> Option<usize> {
        usize::try_from(fields::number(self.field(index)?)?).ok()
    }

    /// Its own layout, or that of the family that it names (`as p5`).
    fn layout(&self, rows: &[Self]) -> Option<Layout> {
        let text = self.field(8)?;
        let Some(family) = text.strip_prefix("as ") else {
            return layout(text);
        };
        let is_family = |row: &&Self| row.instance_type.split('.').next() == Some(family);
        layout(rows.iter().find(is_family)?.field(8)?)
    }
}

fn nics_per_gpu(text: &str) -> Option<NicsPerGpu> {
    let count = |text| NonZeroUsize::new(usize::try_from(fields::number(text)?).ok()?);
    match text {
        "shared" => return Some(NicsPerGpu::Shared),
        "all share" => return Some(NicsPerGpu::AllShare),
        _ => {}
    }
    match text.strip_prefix("shared ") {
        None => count(text).map(NicsPerGpu::Own),
        Some(ratio) => {
            let (nics, gpus) = ratio.split_once(':')?;
            Some(NicsPerGpu::Ratio {
                nics: count(nics)?,
                gpus: count(gpus)?,
            })
        }
    }
}

/// A layout: clauses parted by `;`, NUMA nodes within a clause by `|`. Clauses that name no pair of
/// GPUs and NICs are words for people.
fn layout(text: &str) -> Option<Layout> {
    let clauses: Vec<&str> = text.split(';').map(str::trim).collect();
    let mut groups = pairs(&clauses);
    if groups.is_empty() {
        groups = alike(&clauses)?;
    }
    let is_whole = groups
        .iter()
        .all(|group| !group.gpus.is_empty() && !group.nics.is_empty());
    (is_whole && !groups.is_empty()).then_some(Layout { groups })
}

/// `53->4f,50; 59,5a<-55,56 | …`: GPUs, an arrow either way, their NICs. A pair that can't be read
/// leaves its lists empty.
fn pairs(clauses: &[&str]) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut numa = 0;
    for clause in clauses {
        for (index, part) in clause.split('|').enumerate() {
            let Some((gpus, nics)) = part.split_once("->").or_else(|| part.split_once("<-")) else {
                continue;
            };
            numa += u32::from(index > 0);
            groups.push(Group {
                numa,
                gpus: addresses(gpus),
                nics: addresses(nics),
            });
        }
    }
    groups
}

/// Addresses parted by commas, ascending; none where one can't be read.
fn addresses(text: &str) -> Vec<PciAddress> {
    let all: Option<Vec<_>> = text.split(',').map(|part| address(part.trim())).collect();
    let mut all = all.unwrap_or_default();
    all.sort_unstable();
    all
}

/// A bus (`53`) or more of an address (`10:1b.0`, `0101:00:00.0`).
fn address(text: &str) -> Option<PciAddress> {
    let is_bus = text.len() == 2;
    if is_bus {
        format!("{text}:00.0").parse().ok()
    } else {
        text.parse().ok()
    }
}

/// `roots 10,20 | 90,a0` and `per root NIC xx:1b.0, GPUs xx:1c.0 xx:1d.0`: host bridges that all
/// carry the same.
fn alike(clauses: &[&str]) -> Option<Vec<Group>> {
    let after = |prefix: &str| {
        clauses
            .iter()
            .find_map(|clause| clause.strip_prefix(prefix))
    };
    let roots = after("roots ")?;
    let (nics, gpus) = after("per root NIC ")?.split_once("GPUs ")?;
    let mut groups = Vec::new();
    for (numa, buses) in (0_u32..).zip(roots.split('|')) {
        for bus in buses.split(',').map(str::trim) {
            groups.push(Group {
                numa,
                gpus: on_bus(gpus, bus),
                nics: on_bus(nics, bus),
            });
        }
    }
    Some(groups)
}

/// The addresses `xx:DEVICE.FUNCTION` of a text on a bus, ascending; other words are skipped.
fn on_bus(text: &str, bus: &str) -> Vec<PciAddress> {
    let words = text.split([' ', ',']);
    let devices = words.filter_map(|word| word.strip_prefix("xx:"));
    let mut all: Vec<_> = devices
        .filter_map(|device| format!("{bus}:{device}").parse().ok())
        .collect();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PUBLISHED: &str = include_str!("../../tests/reference/instances.tsv");

    fn entry(instance_type: &str) -> CatalogueEntry {
        Catalogue::published().entry(instance_type).unwrap().clone()
    }

    fn count(n: usize) -> Option<NonZeroUsize> {
        NonZeroUsize::new(n)
    }

    /// `0: 59,5a<-55,56,57,58`, domain 0000 left out.
    fn shown(layout: &Layout) -> Vec<String> {
        let list = |all: &[PciAddress]| {
            let all: Vec<String> = all
                .iter()
                .map(|address| address.to_string()[5..].replace(":00.0", ""))
                .collect();
            all.join(",")
        };
        let groups = layout.groups.iter();
        groups
            .map(|group| {
                let (gpus, nics) = (list(&group.gpus), list(&group.nics));
                format!("{}: {gpus}<-{nics}", group.numa)
            })
            .collect()
    }

    #[test]
    fn the_copy_is_the_published_table() {
        assert_eq!(INSTANCES, PUBLISHED);
        let names: Vec<String> = Catalogue::published()
            .entries()
            .iter()
            .map(|entry| entry.instance_type.clone())
            .collect();
        assert_eq!(
            names,
            [
                "p4d.24xlarge",
                "p4de.24xlarge",
                "p5.48xlarge",
                "p5e.48xlarge",
                "p5en.48xlarge",
                "p6-b200.48xlarge",
                "p6-b300.48xlarge",
                "g5.48xlarge",
                "g6e.48xlarge",
                "p3dn.24xlarge",
                "c5n.18xlarge",
                "trn2.48xlarge",
                "Standard_ND96isr_H100_v5",
                "a3-ultragpu-8g",
                "a3-megagpu-8g",
            ]
        );
        assert_eq!(Catalogue::published().entry("p5"), None);
    }

    #[test]
    fn counts_of_every_row() {
        use NicsPerGpu::{AllShare, Own, Ratio, Shared};
        let own = |n| count(n).map(Own);
        let one_for_two = Some(Ratio {
            nics: count(1).unwrap(),
            gpus: count(2).unwrap(),
        });
        for (name, vcpus, numa, gpus, nics, per_gpu, efa) in [
            ("p4d.24xlarge", 96, 2, 8, Some(4), one_for_two, true),
            ("p4de.24xlarge", 96, 2, 8, Some(4), one_for_two, true),
            ("p5.48xlarge", 192, 2, 8, Some(32), own(4), true),
            ("p5e.48xlarge", 192, 2, 8, Some(32), own(4), true),
            ("p5en.48xlarge", 192, 2, 8, Some(16), own(2), true),
            ("p6-b200.48xlarge", 192, 2, 8, Some(8), own(1), true),
            ("p6-b300.48xlarge", 192, 2, 8, Some(16), own(2), true),
            ("g5.48xlarge", 192, 0, 8, Some(1), Some(AllShare), true),
            ("g6e.48xlarge", 192, 2, 8, Some(4), Some(Shared), true),
            ("p3dn.24xlarge", 96, 0, 8, Some(1), Some(AllShare), true),
            ("c5n.18xlarge", 72, 0, 0, Some(1), None, true),
            ("trn2.48xlarge", 192, 2, 16, Some(16), own(1), true),
            ("Standard_ND96isr_H100_v5", 96, 2, 8, Some(8), own(1), false),
            ("a3-ultragpu-8g", 0, 2, 8, Some(8), own(1), false),
            ("a3-megagpu-8g", 0, 2, 8, Some(0), None, false),
        ] {
            let entry = entry(name);
            assert_eq!(entry.vcpus, count(vcpus), "{name}");
            assert_eq!(entry.numa, count(numa), "{name}");
            assert_eq!(entry.gpus, Some(gpus), "{name}");
            assert_eq!(entry.nics, nics, "{name}");
            assert_eq!(entry.nics_per_gpu, per_gpu, "{name}");
            assert_eq!(entry.has_efa(), efa, "{name}");
        }
        assert_eq!(entry("c5n.18xlarge").gpu, None);
        assert_eq!(entry("p5.48xlarge").gpu.as_deref(), Some("H100 10de:2330"));
        let nic = entry("p5.48xlarge").nic;
        assert_eq!(nic.as_deref(), Some("EFA 1d0f:efa1 100G"));
    }

    #[test]
    fn layouts_where_published() {
        let p5 = [
            "0: 53<-4f,50,51,52",
            "0: 64<-60,61,62,63",
            "0: 75<-71,72,73,74",
            "0: 86<-82,83,84,85",
            "1: 97<-93,94,95,96",
            "1: a8<-a4,a5,a6,a7",
            "1: b9<-b5,b6,b7,b8",
            "1: ca<-c6,c7,c8,c9",
        ];
        let p4 = [
            "0: 10:1c.0,10:1d.0<-10:1b.0",
            "0: 20:1c.0,20:1d.0<-20:1b.0",
            "1: 90:1c.0,90:1d.0<-90:1b.0",
            "1: a0:1c.0,a0:1d.0<-a0:1b.0",
        ];
        let p5en = [
            "0: 59,5a<-55,56,57,58",
            "0: 72,73<-6e,6f,70,71",
            "1: 8b,8c<-87,88,89,8a",
            "1: a4,a5<-a0,a1,a2,a3",
        ];
        let p6 = [
            "0: 51,52<-4f,50",
            "0: 62,63<-60,61",
            "1: 75,76<-71,72",
            "1: 86,87<-84,85",
        ];
        for (name, layout) in [
            ("p4d.24xlarge", &p4[..]),
            ("p4de.24xlarge", &p4),
            ("p5.48xlarge", &p5),
            ("p5e.48xlarge", &p5),
            ("p5en.48xlarge", &p5en),
            ("p6-b200.48xlarge", &p6),
        ] {
            assert_eq!(shown(&entry(name).layout.unwrap()), layout, "{name}");
        }
        let published = Catalogue::published();
        let with_layout = published.entries().iter();
        assert_eq!(
            with_layout.filter(|entry| entry.layout.is_some()).count(),
            6
        );
    }

    #[test]
    fn a_group_is_divided_among_its_gpus() {
        let entry = entry("p5en.48xlarge");
        for (gpu, nics) in [("59:00.0", ["55", "56"]), ("5a:00.0", ["57", "58"])] {
            let gpu = gpu.parse().unwrap();
            let want: Vec<PciAddress> = nics.map(|bus| address(bus).unwrap()).into();
            assert_eq!(entry.group_of(gpu).unwrap().nics_of(gpu), want);
        }
        let other = "5b:00.0".parse().unwrap();
        assert_eq!(entry.group_of(other), None);
        assert_eq!(entry.layout.unwrap().groups[0].nics_of(other), []);
    }

    #[test]
    fn one_type_has_a_factor_of_its_own() {
        let published = Catalogue::published();
        let with_factor = published.entries().iter();
        let with_factor: Vec<_> = with_factor.filter(|entry| entry.factor.is_some()).collect();
        assert_eq!(with_factor.len(), 1);
        assert_eq!(with_factor[0].instance_type, "p6-b300.48xlarge");
        let factor = with_factor[0].factor.clone().unwrap();
        assert_eq!(factor.factor, Factor::new(0.33).unwrap());
        assert!(factor.why.contains("unverified"), "{}", factor.why);
    }

    #[test]
    fn what_can_not_be_read_is_unknown() {
        let text = "# comment\n\ntype\tvcpus\n\
                    \t1\t1\n\
                    short\t0\n\
                    odd\t-1\tx\t2.5\t\t?\t-\tshared 1:0\t53->zz; 64->60\n\
                    words\t8\t1\t1\tG\t1\tN\tshared x\troots and more; 53 is near 4f\n\
                    loop\t8\t1\t1\tG\t1\tN\t1\tas loop\n\
                    gone\t8\t1\t1\tG\t1\tN\t1\tas none\n";
        let catalogue = Catalogue::parse(text, "type\tfactor\twhy\nshort\t2\tx\nnone\t1\tx\n");
        let names = catalogue.entries().iter();
        let names: Vec<&str> = names.map(|entry| entry.instance_type.as_str()).collect();
        assert_eq!(names, ["short", "odd", "words", "loop", "gone"]);
        for entry in catalogue.entries() {
            let name = &entry.instance_type;
            assert_eq!(entry.layout, None, "{name}");
            assert_eq!(entry.factor, None, "{name}");
        }
        let odd = catalogue.entry("odd").unwrap();
        assert_eq!(
            (odd.vcpus, odd.numa, odd.gpus, odd.nics),
            (None, None, None, None)
        );
        assert_eq!((&odd.gpu, &odd.nic, odd.nics_per_gpu), (&None, &None, None));
        assert_eq!(
            catalogue.entry("short").unwrap().vcpus,
            None,
            "0 is unknown"
        );
    }

    proptest! {
        #[test]
        fn junk_never_panics(text in "(?s).{0,200}", cell in "[0-9a-f,:;|<> -]{0,60}") {
            let _ = Catalogue::parse(&text, &text);
            layout(&cell);
        }
    }
}
