//! GPUs: NVIDIA's, by PCI vendor and class or because their driver lists them, with what it tells
//! in `/proc`.

use std::collections::BTreeMap;
use std::path::Path;

use super::pci::{self, Function};
use crate::fields;
use crate::node::Gpu;
use crate::pci::PciAddress;
use crate::root::{Finding, Listing, Root};
use crate::size::count;

const NVIDIA: u16 = 0x10de;
/// VGA controllers and 3D controllers; an `NVSwitch` is a bridge (0x0680), a GPU's sound 0x0403.
const CLASSES: [u32; 2] = [0x0300, 0x0302];

const DRIVER: &str = "proc/driver/nvidia/gpus";
/// Where the driver tells what each GPU is cut into, and the way there from what it always has.
const PROC: &str = "proc/driver/nvidia";
const CAPABILITIES: &str = "capabilities";

/// The GPUs that the driver lists: by address, the names of their folders.
type Told = BTreeMap<PciAddress, String>;

/// The GPUs, by address; `None` where it can't be told how many there are.
pub(super) fn gpus(root: &Root, findings: &mut Vec<Finding>) -> Option<Vec<Gpu>> {
    let names = match root.listing(pci::BUSES, &[pci::BUS], pci::DEVICES) {
        Listing::Names(names) => names,
        Listing::Absent(finding) => {
            findings.push(finding);
            Vec::new()
        }
        Listing::Unknown(finding) => {
            findings.push(uncounted(finding));
            return None;
        }
    };
    let told = root.list(DRIVER).map(|names| {
        let parsed = names.into_iter();
        let parsed = parsed.filter_map(|name| Some((name.parse().ok()?, name)));
        parsed.collect::<Told>()
    });
    let none = Told::new();
    let gpus = listed(root, names, told.as_ref().unwrap_or(&none), findings)?;
    let mut gpus: Vec<Gpu> = gpus.into_values().collect();
    match told {
        _ if gpus.is_empty() => {}
        Ok(told) => ask_driver(root, &told, &mut gpus, findings),
        Err(finding) => {
            let reason = format!("{}: the GPUs' UUIDs are unknown", finding.reason);
            findings.push(Finding { reason, ..finding });
        }
    }
    Some(gpus)
}

/// The GPUs among the PCI devices; `None` where one may be missing.
fn listed(
    root: &Root,
    names: Vec<String>,
    told: &Told,
    findings: &mut Vec<Finding>,
) -> Option<BTreeMap<PciAddress, Gpu>> {
    let mut gpus = BTreeMap::new();
    let mut are_all = true;
    for name in names {
        let link = Path::new(pci::DEVICES).join(&name);
        let is_told = name
            .parse()
            .is_ok_and(|address| told.contains_key(&address));
        match gpu(root, &link, is_told, findings) {
            Ok(None) => {}
            Ok(Some(gpu)) => {
                let address = gpu.place.address;
                if gpus.insert(address, gpu).is_some() {
                    let reason = format!("leads to GPU {address} as another does: it counts once");
                    findings.push(root.finding(link, reason));
                }
            }
            Err(finding) => {
                findings.push(uncounted(finding));
                are_all = false;
            }
        }
    }
    for address in told.keys().filter(|address| !gpus.contains_key(address)) {
        if are_all {
            let reason = format!("has GPU {address}, which is not in /{}", pci::DEVICES);
            findings.push(uncounted(root.finding(DRIVER, reason)));
        }
        are_all = false;
    }
    are_all.then_some(gpus)
}

fn uncounted(finding: Finding) -> Finding {
    let reason = format!("{}: how many GPUs there are is unknown", finding.reason);
    Finding { reason, ..finding }
}

/// A GPU, or `None` for what is none. An error is a device that may be one.
fn gpu(
    root: &Root,
    link: &Path,
    is_told: bool,
    findings: &mut Vec<Finding>,
) -> Result<Option<Gpu>, Finding> {
    let class = pci::class(root, link).map(|class| class >> 8);
    if !is_told && class.as_ref().is_ok_and(|class| !CLASSES.contains(class)) {
        return Ok(None);
    }
    let vendor = pci::id(root, link, "vendor");
    match (&vendor, class) {
        (vendor, class) if is_told => {
            findings.extend(class.err().into_iter().chain(vendor.clone().err()));
        }
        (Ok(NVIDIA), Ok(_)) => {}
        (Ok(NVIDIA), Err(finding)) => return Err(finding),
        (Ok(_), class) => {
            findings.extend(class.err());
            return Ok(None);
        }
        (Err(finding), _) => return Err(finding.clone()),
    }
    let real = root.real(link)?;
    let function =
        Function::on(&real).ok_or_else(|| root.finding(link, "leads to no PCI address"))?;
    let device = pci::id(root, &real, "device");
    findings.extend(device.as_ref().err().cloned());
    Ok(Some(Gpu {
        place: function.place(root, findings),
        vendor: vendor.unwrap_or(NVIDIA),
        device: device.ok(),
        uuid: None,
    }))
}

/// Adds the driver's UUIDs, and notes what it says against a GPU.
fn ask_driver(root: &Root, told: &Told, gpus: &mut [Gpu], findings: &mut Vec<Finding>) {
    for gpu in gpus {
        let address = gpu.place.address;
        let Some(name) = told.get(&address) else {
            findings.push(root.finding(DRIVER, format!("has no GPU {address}")));
            continue;
        };
        let file = format!("{DRIVER}/{name}/information");
        match root.read(&file) {
            Ok(text) => read_information(root, &file, &text, gpu, findings),
            Err(finding) => findings.push(finding),
        }
    }
}

fn read_information(
    root: &Root,
    file: &str,
    text: &str,
    gpu: &mut Gpu,
    findings: &mut Vec<Finding>,
) {
    match fields::value(text, "GPU UUID") {
        Some(uuid) if !uuid.contains('?') => {
            let is_uuid = |uuid: &&str| uuid.starts_with("GPU-");
            gpu.uuid = fields::word(uuid).filter(is_uuid).map(str::to_owned);
            if gpu.uuid.is_none() {
                let reason = fields::unexpected("a GPU UUID such as GPU-0123abcd", uuid);
                findings.push(root.finding(file, reason));
            }
        }
        _ => findings.push(root.finding(file, "has no GPU UUID yet")),
    }
    if fields::value(text, "GPU Excluded") == Some("Yes") {
        findings.push(root.finding(file, "the driver excludes this GPU from use"));
    }
    findings.extend(match fields::value(text, "Device Minor") {
        None => Some(root.finding(file, format!("has no Device Minor: {}", uncut(gpu)))),
        Some(text) => match fields::number(text) {
            Some(minor) => mig(root, minor, gpu),
            None => {
                let what = fields::unexpected("a Device Minor such as 0", text);
                Some(root.finding(file, format!("{what}: {}", uncut(gpu))))
            }
        },
    });
}

fn uncut(gpu: &Gpu) -> String {
    let address = gpu.place.address;
    format!("whether GPU {address} is cut into MIG instances is unknown")
}

/// That a GPU is cut into instances, each of which the driver gives a folder `gi<N>`, or that it
/// may be.
fn mig(root: &Root, minor: u64, gpu: &Gpu) -> Option<Finding> {
    let own = format!("gpu{minor}");
    let folder = format!("{PROC}/{CAPABILITIES}/{own}/mig");
    let names = match root.listing(PROC, &[CAPABILITIES, &own, "mig"], &folder) {
        Listing::Names(names) => names,
        Listing::Absent(_) => return None,
        Listing::Unknown(finding) => {
            let reason = format!("{}: {}", finding.reason, uncut(gpu));
            return Some(Finding { reason, ..finding });
        }
    };
    let is_instance = |name: &&String| name.strip_prefix("gi").is_some_and(is_number);
    let instances = names.iter().filter(is_instance).count();
    let reason = format!(
        "GPU {} is cut into {}: what is planned is for the whole GPU",
        gpu.place.address,
        count(instances, "MIG instance")
    );
    (instances > 0).then(|| root.finding(folder, reason))
}

fn is_number(text: &str) -> bool {
    fields::number(text).is_some()
}
