//! GPUs: NVIDIA's, by PCI vendor and class, with what their driver tells in `/proc`.

use std::path::Path;

use super::pci::{self, Function};
use crate::fields;
use crate::node::Gpu;
use crate::pci::PciAddress;
use crate::root::{Finding, Root};

const NVIDIA: u16 = 0x10de;
/// VGA controllers and 3D controllers; an `NVSwitch` is a bridge (0x0680), a GPU's sound 0x0403.
const CLASSES: [u32; 2] = [0x0300, 0x0302];

const DRIVER: &str = "proc/driver/nvidia/gpus";
const CAPABILITIES: &str = "proc/driver/nvidia/capabilities";

/// The GPUs, by address.
pub(super) fn gpus(root: &Root, findings: &mut Vec<Finding>) -> Vec<Gpu> {
    let names = match root.list(pci::DEVICES) {
        Ok(names) => names,
        Err(finding) => {
            findings.push(finding);
            return Vec::new();
        }
    };
    let mut gpus = Vec::new();
    for name in names {
        match gpu(root, &Path::new(pci::DEVICES).join(name), findings) {
            Ok(gpu) => gpus.extend(gpu),
            Err(finding) => findings.push(finding),
        }
    }
    gpus.sort_by_key(|gpu| gpu.place.address);
    if !gpus.is_empty() {
        ask_driver(root, &mut gpus, findings);
    }
    gpus
}

fn gpu(root: &Root, link: &Path, findings: &mut Vec<Finding>) -> Result<Option<Gpu>, Finding> {
    if !CLASSES.contains(&(pci::class(root, link)? >> 8)) {
        return Ok(None);
    }
    let vendor = pci::id(root, link, "vendor")?;
    if vendor != NVIDIA {
        return Ok(None);
    }
    let real = root.real(link)?;
    let function = Function::on(&real)
        .ok_or_else(|| root.finding(link, "leads to no PCI address: this GPU is left out"))?;
    Ok(Some(Gpu {
        place: function.place(root, findings),
        vendor,
        device: pci::id(root, &real, "device")?,
        uuid: None,
    }))
}

/// Adds the driver's UUIDs, and notes what it says against a GPU.
fn ask_driver(root: &Root, gpus: &mut [Gpu], findings: &mut Vec<Finding>) {
    let names = match root.list(DRIVER) {
        Ok(names) => names,
        Err(finding) => {
            let reason = format!("{}: the GPUs' UUIDs are unknown", finding.reason);
            findings.push(Finding { reason, ..finding });
            return;
        }
    };
    for gpu in gpus {
        let address = gpu.place.address;
        let same = |name: &&String| name.parse::<PciAddress>() == Ok(address);
        let Some(name) = names.iter().find(same) else {
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
    gpu.uuid = fields::value(text, "GPU UUID")
        .filter(|uuid| uuid.starts_with("GPU-") && !uuid.contains('?'))
        .map(str::to_owned);
    if gpu.uuid.is_none() {
        findings.push(root.finding(file, "has no GPU UUID yet"));
    }
    if fields::value(text, "GPU Excluded") == Some("Yes") {
        findings.push(root.finding(file, "the driver excludes this GPU from use"));
    }
    let minor = fields::value(text, "Device Minor").and_then(fields::number);
    if let Some(minor) = minor {
        findings.extend(mig(root, minor, gpu.place.address));
    }
}

/// That a GPU is cut into instances, each of which the driver gives a folder `gi<N>`.
fn mig(root: &Root, minor: u64, address: PciAddress) -> Option<Finding> {
    let folder = format!("{CAPABILITIES}/gpu{minor}/mig");
    let names = root.list(&folder).ok()?;
    let is_instance = |name: &&String| name.strip_prefix("gi").is_some_and(is_number);
    let count = names.iter().filter(is_instance).count();
    let reason = format!(
        "GPU {address} is cut into {count} MIG instances: what is planned is for the whole GPU"
    );
    (count > 0).then(|| root.finding(folder, reason))
}

fn is_number(text: &str) -> bool {
    fields::number(text).is_some()
}
