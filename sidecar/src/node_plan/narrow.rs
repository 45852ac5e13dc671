//! From the node's table to the rails of the GPUs that the pod got.

use siding_crds::plan::GpuRail;
use siding_topology::PciAddress;

/// The part of a table that concerns the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Narrowed {
    /// Rails, in the order of the table.
    pub(super) rails: Vec<GpuRail>,
    /// Their NICs, each once, in the order of the rails.
    pub(super) nics: Vec<String>,
    /// What did not go together.
    pub(super) findings: Vec<String>,
}

/// Narrows a table to these GPUs; `None`: they are not known. Where none of them is in the table,
/// or the pod has none, its NICs are all that the node has: nothing says which are near.
pub(super) fn narrow(table: &[GpuRail], gpus: Option<&[String]>) -> Narrowed {
    let Some(gpus) = gpus else {
        return whole(table);
    };
    let unknown: Vec<&String> = gpus
        .iter()
        .filter(|gpu| !table.iter().any(|rail| is(rail, gpu)))
        .collect();
    let findings = unknown
        .iter()
        .map(|gpu| format!("GPU {gpu} of the pod is not in the node's table"))
        .collect();
    let rails: Vec<GpuRail> = table
        .iter()
        .filter(|rail| gpus.iter().any(|gpu| is(rail, gpu)))
        .cloned()
        .collect();
    let near = if rails.is_empty() { table } else { &rails };
    Narrowed {
        nics: nics_of(near),
        rails,
        findings,
    }
}

fn whole(table: &[GpuRail]) -> Narrowed {
    Narrowed {
        rails: table.to_vec(),
        nics: nics_of(table),
        findings: Vec::new(),
    }
}

fn is(rail: &GpuRail, gpu: &str) -> bool {
    let by_uuid = rail
        .uuid
        .as_ref()
        .is_some_and(|uuid| uuid.eq_ignore_ascii_case(gpu));
    let address = |text: &str| text.parse::<PciAddress>().ok();
    by_uuid || address(gpu).is_some_and(|wanted| address(&rail.gpu) == Some(wanted))
}

fn nics_of(rails: &[GpuRail]) -> Vec<String> {
    let mut nics: Vec<String> = Vec::new();
    for nic in rails.iter().flat_map(|rail| &rail.nics) {
        if !nics.contains(nic) {
            nics.push(nic.clone());
        }
    }
    nics
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<GpuRail> {
        let rail = |gpu: &str, uuid: Option<&str>, nics: &[&str]| GpuRail {
            gpu: gpu.to_owned(),
            uuid: uuid.map(str::to_owned),
            nics: nics.iter().map(|nic| (*nic).to_owned()).collect(),
            evidence: "SameSwitch".to_owned(),
        };
        vec![
            rail("0000:53:00.0", Some("GPU-aa"), &["n0", "n1"]),
            rail("0000:64:00.0", Some("GPU-bb"), &["n1", "n2"]),
            rail("0000:75:00.0", None, &["n3"]),
        ]
    }

    #[test]
    fn table_of_what_the_kubelet_may_say() {
        type Case<'a> = (
            Option<&'a [&'a str]>,
            &'a [usize],
            &'a [&'a str],
            &'a [&'a str],
        );
        let all = ["n0", "n1", "n2", "n3"];
        let cases: [Case<'_>; 8] = [
            (None, &[0, 1, 2], &all, &[]),
            (Some(&["GPU-bb"]), &[1], &["n1", "n2"], &[]),
            (
                Some(&["gpu-BB", "0000:53:00.0"]),
                &[0, 1],
                &["n0", "n1", "n2"],
                &[],
            ),
            (Some(&["00000000:75:00.0"]), &[2], &["n3"], &[]),
            (Some(&["GPU-aa", "0000:53:00.0"]), &[0], &["n0", "n1"], &[]),
            (
                Some(&["nvidia0", "GPU-aa"]),
                &[0],
                &["n0", "n1"],
                &["nvidia0"],
            ),
            (Some(&["nvidia0"]), &[], &all, &["nvidia0"]),
            (Some(&[]), &[], &all, &[]),
        ];
        for (gpus, rails, nics, unmatched) in cases {
            let owned: Option<Vec<String>> =
                gpus.map(|gpus| gpus.iter().map(|gpu| (*gpu).to_owned()).collect());
            let narrowed = narrow(&table(), owned.as_deref());
            let wanted: Vec<GpuRail> = rails.iter().map(|at| table()[*at].clone()).collect();
            assert_eq!(narrowed.rails, wanted, "{gpus:?}");
            assert_eq!(narrowed.nics, nics, "{gpus:?}");
            assert_eq!(narrowed.findings.len(), unmatched.len(), "{gpus:?}");
            for (finding, gpu) in narrowed.findings.iter().zip(unmatched) {
                assert!(finding.contains(gpu), "{finding}");
            }
        }
    }
}
