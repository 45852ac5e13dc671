//! The cloud's name for the node's type, from the firmware's tables.

use crate::fields;
use crate::root::{Finding, Root};

const VENDOR: &str = "sys/class/dmi/id/sys_vendor";
const PRODUCT: &str = "sys/class/dmi/id/product_name";

/// As long as a label's value can be.
const MAX_NAME: usize = 63;

/// The type as given, else as the firmware tells it.
pub(super) fn instance_type(
    root: &Root,
    given: Option<&str>,
    findings: &mut Vec<Finding>,
) -> Option<String> {
    let told = firmware(root);
    match (given, told) {
        (Some(given), Ok(told)) if told != given => {
            let reason = format!("says {told}, given was {given}, which is taken");
            findings.push(root.finding(PRODUCT, reason));
            Some(given.to_owned())
        }
        (Some(given), _) => Some(given.to_owned()),
        (None, Ok(told)) => Some(told),
        (None, Err(finding)) => {
            findings.push(finding);
            None
        }
    }
}

fn firmware(root: &Root) -> Result<String, Finding> {
    let (vendor, product) = (root.read(VENDOR)?, root.read(PRODUCT)?);
    named(vendor.trim(), product.trim()).map_err(|reason| root.finding(PRODUCT, reason))
}

/// Whether this can be a cloud's name for a type of machine: what a node's label can hold.
#[must_use]
pub fn is_type_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_part)
}

/// The product's name where the vendor puts the instance type there.
fn named(vendor: &str, product: &str) -> Result<String, String> {
    let is_type = product.contains('.') && is_type_name(product);
    match vendor {
        "Amazon EC2" if is_type => Ok(product.to_owned()),
        "Microsoft Corporation" | "Google" => Err(format!(
            "{}: {vendor}'s machines do not tell their type here; --instance-type can tell it",
            fields::cut(product)
        )),
        _ => Err(format!(
            "{} of {} is no known instance type; --instance-type can tell it",
            fields::cut(product),
            fields::cut(vendor)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    #[test]
    fn who_tells_the_type() {
        for (vendor, product, want) in [
            ("Amazon EC2", "p5.48xlarge", Some("p5.48xlarge")),
            ("Amazon EC2", "c5.metal", Some("c5.metal")),
            ("Amazon EC2", "", None),
            ("Amazon EC2", "p5.\u{1b}[31m", None),
            ("Amazon EC2", "p5.$(id)", None),
            ("Xen", "HVM domU", None),
            ("Microsoft Corporation", "Virtual Machine", None),
            ("Google", "Google Compute Engine", None),
            ("Dell Inc.", "PowerEdge XE9680", None),
            ("", "", None),
        ] {
            assert_eq!(named(vendor, product).ok().as_deref(), want, "{product}");
        }
        assert_eq!(
            named("Google", "Google Compute Engine").unwrap_err(),
            "\"Google Compute Engine\": Google's machines do not tell their type here; --instance-type \
             can tell it"
        );
    }

    #[test]
    fn names_of_types() {
        for name in [
            "p5.48xlarge",
            "Standard_ND96isr_H100_v5",
            "a3-highgpu-8g",
            "x",
        ] {
            assert!(is_type_name(name), "{name}");
        }
        for name in [
            "",
            " ",
            "p5 48xlarge",
            "\u{1b}[31m",
            "p5\n",
            "é",
            &"x".repeat(64),
        ] {
            assert!(!is_type_name(name), "{name:?}");
        }
    }

    #[test]
    fn the_given_type_wins_and_a_contradiction_is_said() {
        let fixture = Fixture::new(&[(VENDOR, "Amazon EC2\n"), (PRODUCT, "p5.48xlarge\n")]);
        let root = fixture.root();
        let mut findings = Vec::new();
        for (given, want) in [(None, "p5.48xlarge"), (Some("p5.48xlarge"), "p5.48xlarge")] {
            let got = instance_type(&root, given, &mut findings);
            assert_eq!((got.as_deref(), &findings[..]), (Some(want), &[][..]));
        }
        let got = instance_type(&root, Some("p4d.24xlarge"), &mut findings);
        assert_eq!(got.as_deref(), Some("p4d.24xlarge"));
        let reason = "says p5.48xlarge, given was p4d.24xlarge, which is taken";
        assert_eq!(findings, [root.finding(PRODUCT, reason)]);
    }

    #[test]
    fn without_firmware_it_is_unknown_unless_given() {
        let root = Fixture::new(&[]).root();
        let mut findings = Vec::new();
        assert_eq!(
            instance_type(&root, Some("any"), &mut findings),
            Some("any".to_owned())
        );
        assert_eq!(findings, []);
        assert_eq!(instance_type(&root, None, &mut findings), None);
        assert_eq!(findings, [root.finding(VENDOR, "does not exist")]);
    }
}
