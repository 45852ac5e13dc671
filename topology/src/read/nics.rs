//! NICs: the devices of `/sys/class/infiniband`.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::pci::{self, Function};
use crate::fields;
use crate::node::{Nic, Unusable};
use crate::root::{Finding, Listing, Root};

/// What the kernel has on any machine.
const CLASSES: &str = "sys/class";
const CLASS: &str = "sys/class/infiniband";
const UVERBS: &str = "sys/class/infiniband_verbs";
const NETWORK: &str = "sys/class/net";

const AMAZON: u16 = 0x1d0f;
const MELLANOX: u16 = 0x15b3;
/// All of Amazon's devices from this one to `0xefaf` are EFA.
const FIRST_EFA: u16 = 0xefa0;
const NVLINK_CONTROLLER: u16 = 0x1021;
const INFINIBAND_CONTROLLER: u32 = 0x0207;

/// A device, and what else decides whether it can be used.
#[derive(Clone, Debug)]
struct Seen {
    nic: Nic,
    /// PCI class and subclass.
    class: Option<u32>,
    kind: Kind,
    /// Unknown where it can't be told which uverbs devices there are.
    has_uverbs: Option<bool>,
}

/// The uverbs devices by the device that each says it belongs to.
struct Uverbs {
    names: BTreeMap<String, String>,
    /// Whether there may be others.
    are_all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A PCI function, or what hangs on one, or what may as its link can't be followed.
    Hardware,
    /// A virtual function whose physical one is on this machine, or a device that is on none.
    Virtual,
    /// Made by a driver on top of a network device.
    Soft,
}

/// The NICs by name; `None` where it can't be told which there are.
pub(super) fn nics(
    root: &Root,
    allow_soft_rdma: bool,
    findings: &mut Vec<Finding>,
) -> Option<Vec<Nic>> {
    let mut names = match root.listing(CLASSES, &["infiniband"], CLASS) {
        Listing::Names(names) => names,
        Listing::Absent(finding) => {
            findings.push(with(
                finding,
                "no RDMA device, or its kernel module is not loaded",
            ));
            return Some(Vec::new());
        }
        Listing::Unknown(finding) => {
            findings.push(with(finding, "which NICs there are is unknown"));
            return None;
        }
    };
    names.sort_by(|a, b| by_number(a, b));
    let uverbs = uverbs(root, findings);
    let seen = names
        .iter()
        .map(|name| device(root, name, &uverbs, findings));
    let seen: Vec<Seen> = seen.collect();
    let has_efa = seen.iter().any(|seen| is_efa(&seen.nic));
    let judged = seen.into_iter().map(|seen| {
        let unusable = unusable(&seen, has_efa, allow_soft_rdma);
        Nic {
            unusable,
            ..seen.nic
        }
    });
    Some(judged.collect())
}

fn with(finding: Finding, consequence: &str) -> Finding {
    let reason = format!("{}: {consequence}", finding.reason);
    Finding { reason, ..finding }
}

/// The first of the reasons against a device, the one that nothing mends before the others.
fn unusable(seen: &Seen, has_efa: bool, allow_soft_rdma: bool) -> Option<Unusable> {
    let nic = &seen.nic;
    let is_nvlink = nic.ids == Some((MELLANOX, NVLINK_CONTROLLER))
        && seen.class == Some(INFINIBAND_CONTROLLER)
        && seen.kind == Kind::Hardware;
    match seen.kind {
        _ if is_nvlink && has_efa => Some(Unusable::NvlinkController),
        Kind::Virtual => Some(Unusable::Virtual),
        Kind::Soft if !allow_soft_rdma => Some(Unusable::SoftRdma),
        _ if seen.has_uverbs == Some(false) => Some(Unusable::NoUverbs),
        _ if is_active(nic.port_state.as_deref()) == Some(false) => Some(Unusable::Down),
        _ => None,
    }
}

/// Whether a port in this state carries data; unknown where the state is.
fn is_active(state: Option<&str>) -> Option<bool> {
    state.map(|state| matches!(state, "ACTIVE" | "ACTIVE_DEFER"))
}

fn is_efa(nic: &Nic) -> bool {
    nic.ids
        .is_some_and(|(vendor, device)| vendor == AMAZON && device & 0xfff0 == FIRST_EFA)
}

/// Which uverbs device belongs to which device, as each uverbs device says.
fn uverbs(root: &Root, findings: &mut Vec<Finding>) -> Uverbs {
    let (names, mut are_all) = match root.listing(CLASSES, &["infiniband_verbs"], UVERBS) {
        Listing::Names(names) => (names, true),
        Listing::Absent(finding) => {
            findings.push(finding);
            (Vec::new(), true)
        }
        Listing::Unknown(finding) => {
            findings.push(with(finding, "which NICs have a uverbs device is unknown"));
            (Vec::new(), false)
        }
    };
    let mut devices = BTreeMap::new();
    for name in names.into_iter().filter(|name| name.starts_with("uverbs")) {
        match root.read(format!("{UVERBS}/{name}/ibdev")) {
            Ok(device) => {
                devices.insert(device.trim().to_owned(), name);
            }
            Err(finding) => {
                findings.push(with(finding, "which NIC it belongs to is unknown"));
                are_all = false;
            }
        }
    }
    Uverbs {
        names: devices,
        are_all,
    }
}

fn device(root: &Root, name: &str, uverbs: &Uverbs, findings: &mut Vec<Finding>) -> Seen {
    let folder = Path::new(CLASS).join(name);
    let (hardware, may_be_hardware) = hardware(root, &folder, findings);
    let (parent, has_parent) = parent(root, &folder.join("parent"), findings);
    let soft = soft_driver(root, &folder, may_be_hardware, has_parent);
    let below = match &parent {
        Some(parent) => root.real(format!("{NETWORK}/{parent}/device")).ok(),
        None if has_parent => None,
        None => hardware,
    };
    let function = below.as_deref().and_then(Function::on);
    let port = port(root, &folder, findings);
    let port_folder = port.as_ref().map(|port| port.folder.as_path());
    let netdev = parent.or_else(|| netdev(root, below.as_deref()?, port_folder));
    let uverbs_name = uverbs.names.get(name).cloned();
    let has_uverbs = (uverbs_name.is_some() || uverbs.are_all).then_some(uverbs_name.is_some());
    let mut nic = Nic {
        name: name.to_owned(),
        place: function.as_ref().map(|found| found.place(root, findings)),
        ids: None,
        driver: soft.map(str::to_owned),
        port: None,
        port_state: None,
        link_layer: None,
        rate_gbps: None,
        netdev,
        uverbs: uverbs_name,
        unusable: None,
    };
    if let Some(port) = port {
        read_port(root, port, &mut nic, findings);
    }
    let (mut class, mut kind) = (None, Kind::Virtual);
    if below.is_none() && may_be_hardware {
        kind = Kind::Hardware;
    }
    if let Some(function) = &function {
        nic.ids = noted(findings, ids(root, &function.folder));
        class = noted(findings, pci::class(root, &function.folder)).map(|class| class >> 8);
        if root.real(function.folder.join("physfn")).is_err() {
            kind = Kind::Hardware;
        }
    }
    match (soft, below) {
        (Some(_), _) => kind = Kind::Soft,
        (None, Some(below)) => nic.driver = noted(findings, driver(root, &below)),
        (None, None) => {}
    }
    Seen {
        nic,
        class,
        kind,
        has_uverbs,
    }
}

/// The network device that a file says another is made on, and whether there is such a file.
fn parent(root: &Root, file: &Path, findings: &mut Vec<Finding>) -> (Option<String>, bool) {
    let Some(text) = noted(findings, root.read_if_there(file)).flatten() else {
        return (None, false);
    };
    let name = fields::name(&text).map(str::to_owned);
    if name.is_none() {
        let reason = fields::unexpected("a network device's name", &text);
        findings.push(root.finding(file, reason));
    }
    (name, true)
}

/// What a device hangs on, and whether it hangs on something: it does where there is a link, even
/// one that leads nowhere, and it may where its folder can't be listed.
fn hardware(root: &Root, folder: &Path, findings: &mut Vec<Finding>) -> (Option<PathBuf>, bool) {
    let finding = match root.real(folder.join("device")) {
        Ok(real) => return (Some(real), true),
        Err(finding) => finding,
    };
    let names = root.list(folder);
    if names.is_ok_and(|names| names.iter().all(|name| name != "device")) {
        return (None, false);
    }
    findings.push(with(finding, "where this NIC is is unknown"));
    (None, true)
}

fn noted<T>(findings: &mut Vec<Finding>, read: Result<T, Finding>) -> Option<T> {
    read.map_err(|finding| findings.push(finding)).ok()
}

/// The driver of a software device: `rdma_rxe` alone names a parent, and what is on no bus and
/// calls itself an RNIC is `siw`.
fn soft_driver(
    root: &Root,
    folder: &Path,
    has_device: bool,
    has_parent: bool,
) -> Option<&'static str> {
    if has_parent {
        return Some("rdma_rxe");
    }
    let kind = || root.read(folder.join("node_type")).ok();
    let is_rnic = || kind().is_some_and(|kind| kind.trim().ends_with("RNIC"));
    (!has_device && is_rnic()).then_some("siw")
}

fn ids(root: &Root, folder: &Path) -> Result<(u16, u16), Finding> {
    Ok((
        pci::id(root, folder, "vendor")?,
        pci::id(root, folder, "device")?,
    ))
}

/// The name of the folder that `driver` leads to.
fn driver(root: &Root, device: &Path) -> Result<String, Finding> {
    let link = device.join("driver");
    let real = root.real(&link)?;
    let name = real.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned)
        .ok_or_else(|| root.finding(link, "names no driver"))
}

/// A port of a device.
struct Port {
    number: u32,
    folder: PathBuf,
    state: Option<String>,
}

/// The port that a device is judged by: the first active one, else the first that may be, else the
/// first.
fn port(root: &Root, folder: &Path, findings: &mut Vec<Finding>) -> Option<Port> {
    let ports = folder.join("ports");
    let names = noted(findings, root.list(&ports))?;
    let numbers = names.iter().filter_map(|name| fields::number(name));
    let found = numbers.filter_map(|number| u32::try_from(number).ok());
    let found = found.map(|number| {
        let folder = ports.join(number.to_string());
        let state = field(root, &folder.join("state"), STATE, state, findings);
        Port {
            number,
            folder,
            state,
        }
    });
    let best = found.min_by_key(|port| {
        let order = match is_active(port.state.as_deref()) {
            Some(true) => 0,
            None => 1,
            Some(false) => 2,
        };
        (order, port.number)
    });
    if best.is_none() {
        findings.push(root.finding(&ports, "has no port"));
    }
    best
}

const STATE: &str = "a state such as 4: ACTIVE";
const RATE: &str = "a rate such as 100 Gb/sec (4X EDR)";

fn read_port(root: &Root, port: Port, nic: &mut Nic, findings: &mut Vec<Finding>) {
    let file = |name| port.folder.join(name);
    nic.port = Some(port.number);
    nic.link_layer = field(root, &file("link_layer"), "a link layer", word, findings);
    nic.rate_gbps = field(root, &file("rate"), RATE, gbps, findings);
    nic.port_state = port.state;
}

fn field<T>(
    root: &Root,
    file: &Path,
    wanted: &str,
    parse: impl Fn(&str) -> Option<T>,
    findings: &mut Vec<Finding>,
) -> Option<T> {
    let text = noted(findings, root.read(file))?;
    let parsed = parse(&text);
    if parsed.is_none() {
        findings.push(root.finding(file, fields::unexpected(wanted, &text)));
    }
    parsed
}

/// `ACTIVE` of `4: ACTIVE`.
fn state(text: &str) -> Option<String> {
    let (number, name) = text.trim().split_once(": ")?;
    fields::number(number)?;
    word(name)
}

fn word(text: &str) -> Option<String> {
    fields::word(text).map(str::to_owned)
}

/// The whole gigabits of `100 Gb/sec (4X EDR)` or `2.5 Gb/sec (1X SDR)`; none of a rate below 1.
fn gbps(text: &str) -> Option<u32> {
    let (number, _) = text.trim().split_once(" Gb/sec")?;
    let whole = number.split_once('.').map_or(number, |(whole, _)| whole);
    let rate = u32::try_from(fields::number(whole)?).ok()?;
    (rate > 0).then_some(rate)
}

/// The network device that the port's addresses belong to, else the first one of the device.
fn netdev(root: &Root, device: &Path, port: Option<&Path>) -> Option<String> {
    let mut names = root.list(device.join("net")).ok()?;
    names.sort_by(|a, b| by_number(a, b));
    let addressed = port.and_then(|port| root.read(port.join("gid_attrs/ndevs/0")).ok());
    let addressed = addressed.map(|name| name.trim().to_owned());
    addressed
        .filter(|name| names.contains(name))
        .or_else(|| names.into_iter().next())
}

/// Orders names as a reader would: runs of digits by their value.
fn by_number(a: &str, b: &str) -> Ordering {
    let key = |name: &str| -> Vec<(String, u64)> {
        let mut parts = vec![(String::new(), 0_u64)];
        let mut in_digits = false;
        for letter in name.chars() {
            let digit = letter.to_digit(10);
            if digit.is_none() && in_digits {
                parts.push((String::new(), 0));
            }
            in_digits = digit.is_some();
            if let Some((word, number)) = parts.last_mut() {
                match digit {
                    Some(digit) => {
                        *number = number.saturating_mul(10).saturating_add(u64::from(digit));
                    }
                    None => word.push(letter),
                }
            }
        }
        parts
    };
    key(a).cmp(&key(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_in_a_readers_order() {
        let mut names = [
            "rdmap100s0",
            "rdmap16s27",
            "mlx5_10",
            "mlx5_2",
            "mlx5",
            "rdmap16s9",
            "rxe0",
            "7",
        ];
        names.sort_by(|a, b| by_number(a, b));
        assert_eq!(
            names,
            [
                "7",
                "mlx5",
                "mlx5_2",
                "mlx5_10",
                "rdmap16s9",
                "rdmap16s27",
                "rdmap100s0",
                "rxe0"
            ]
        );
    }

    #[test]
    fn rates_and_states() {
        for (text, want) in [
            ("100 Gb/sec (4X EDR)\n", Some(100)),
            ("400 Gb/sec (4X NDR)\n", Some(400)),
            ("2.5 Gb/sec (1X SDR)\n", Some(2)),
            ("0 Gb/sec\n", None),
            ("0.5 Gb/sec\n", None),
            ("100\n", None),
            ("", None),
            ("99999999999 Gb/sec", None),
        ] {
            assert_eq!(gbps(text), want, "{text:?}");
        }
        for (text, want) in [
            ("4: ACTIVE\n", Some("ACTIVE")),
            ("1: DOWN\n", Some("DOWN")),
            ("5: ACTIVE_DEFER\n", Some("ACTIVE_DEFER")),
            ("ACTIVE\n", None),
            ("4: \n", None),
            ("", None),
        ] {
            assert_eq!(state(text).as_deref(), want, "{text:?}");
        }
    }

    fn seen(kind: Kind, ids: (u16, u16), class: u32, state: Option<&str>, uverbs: bool) -> Seen {
        Seen {
            nic: Nic {
                name: "x".to_owned(),
                place: None,
                ids: Some(ids),
                driver: None,
                port: None,
                port_state: state.map(str::to_owned),
                link_layer: None,
                rate_gbps: None,
                netdev: None,
                uverbs: uverbs.then(|| "uverbs0".to_owned()),
                unusable: None,
            },
            class: Some(class),
            kind,
            has_uverbs: Some(uverbs),
        }
    }

    #[test]
    fn reasons_and_which_comes_first() {
        use Kind::{Hardware, Soft, Virtual};
        let nvlink = (MELLANOX, NVLINK_CONTROLLER);
        let cx7 = (MELLANOX, 0x101e);
        let (active, down) = (Some("ACTIVE"), Some("DOWN"));
        for (kind, ids, class, state, uverbs, efa, soft, want) in [
            (Hardware, cx7, 0x0207, active, true, true, false, None),
            (
                Hardware,
                cx7,
                0x0207,
                Some("ACTIVE_DEFER"),
                true,
                false,
                false,
                None,
            ),
            (Hardware, cx7, 0x0207, None, true, false, false, None),
            (
                Hardware,
                cx7,
                0x0207,
                down,
                true,
                false,
                false,
                Some(Unusable::Down),
            ),
            (
                Hardware,
                cx7,
                0x0207,
                Some("INIT"),
                true,
                false,
                false,
                Some(Unusable::Down),
            ),
            (
                Hardware,
                cx7,
                0x0207,
                down,
                false,
                false,
                false,
                Some(Unusable::NoUverbs),
            ),
            (
                Virtual,
                cx7,
                0x0207,
                active,
                true,
                false,
                true,
                Some(Unusable::Virtual),
            ),
            (
                Soft,
                cx7,
                0x0200,
                active,
                true,
                false,
                false,
                Some(Unusable::SoftRdma),
            ),
            (Soft, cx7, 0x0200, active, true, false, true, None),
            (
                Soft,
                cx7,
                0x0200,
                down,
                true,
                false,
                true,
                Some(Unusable::Down),
            ),
            (
                Hardware,
                nvlink,
                0x0207,
                active,
                true,
                true,
                false,
                Some(Unusable::NvlinkController),
            ),
            (
                Hardware,
                nvlink,
                0x0207,
                down,
                false,
                true,
                false,
                Some(Unusable::NvlinkController),
            ),
            (Hardware, nvlink, 0x0207, active, true, false, false, None),
            (Hardware, nvlink, 0x0200, active, true, true, false, None),
        ] {
            let seen = seen(kind, ids, class, state, uverbs);
            assert_eq!(
                unusable(&seen, efa, soft),
                want,
                "{seen:?} efa {efa} soft {soft}"
            );
        }
    }

    #[test]
    fn which_device_is_efa() {
        for (ids, want) in [
            ((0x1d0f, 0xefa0), true),
            ((0x1d0f, 0xefa3), true),
            ((0x1d0f, 0xefb0), false),
            ((0x1d0f, 0xec20), false),
            ((0x15b3, 0xefa0), false),
        ] {
            let seen = seen(Kind::Hardware, ids, 0, None, true);
            assert_eq!(is_efa(&seen.nic), want, "{ids:x?}");
        }
    }

    proptest! {
        #[test]
        fn junk_never_panics(a in "(?s).{0,40}", b in "[a-z0-9]{0,40}") {
            let _ = (gbps(&a), state(&a), word(&a));
            prop_assert_eq!(by_number(&a, &b), by_number(&b, &a).reverse());
            prop_assert_eq!(by_number(&a, &a), Ordering::Equal);
        }
    }
}
