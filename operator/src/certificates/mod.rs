//! Certificates of the webhooks: a CA of our own and a leaf, made, judged and renewed. Pure but for
//! randomness; [`keeper`] does the I/O.

pub mod keeper;
pub mod serving;

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use x509_parser::pem::parse_x509_pem;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a CA lives.
pub const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// How long a leaf lives. It is renewed when a third of that is left.
pub const LEAF_LIFE: Duration = Duration::from_secs(90 * 24 * 60 * 60);
/// Clocks differ.
const BACKDATED: Duration = DAY;

/// A certificate and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").finish_non_exhaustive()
    }
}

/// What a webhook needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// The CA that signs.
    pub ca: Pair,
    /// What serves.
    pub leaf: Pair,
    /// What clients trust: the CA, and the one before it while leaves of that may still be served.
    pub trusted: String,
}

/// Why one can't be made or read.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// It can't be made.
    #[error("a certificate can't be made: {0}")]
    Make(#[from] rcgen::Error),
    /// It can't be read.
    #[error("not a certificate in PEM form")]
    Unreadable,
}

/// A bundle that is good now for these names: the one at hand where it still is, else one with
/// what is worn out made anew. The second value is whether anything changed.
///
/// # Errors
/// Where one can't be made.
pub fn renewed(
    at_hand: Option<Bundle>,
    names: &[String],
    now: SystemTime,
) -> Result<(Bundle, bool), CertificateError> {
    let old = at_hand.filter(|bundle| ends(&bundle.ca.certificate).is_ok());
    let ca_is_good = |bundle: &Bundle| is_fresh(&bundle.ca.certificate, CA_LIFE, now);
    let leaf_is_good = |bundle: &Bundle| {
        is_fresh(&bundle.leaf.certificate, LEAF_LIFE, now)
            && names_of(&bundle.leaf.certificate) == names
            && is_signed_by(&bundle.leaf.certificate, &bundle.ca.certificate)
    };
    match old {
        Some(bundle) if ca_is_good(&bundle) && leaf_is_good(&bundle) => Ok((bundle, false)),
        Some(bundle) if ca_is_good(&bundle) => {
            let leaf = leaf(&bundle.ca, names, now)?;
            Ok((Bundle { leaf, ..bundle }, true))
        }
        old => {
            let ca = authority(now)?;
            let leaf = leaf(&ca, names, now)?;
            let before = old.map(|bundle| bundle.ca.certificate).unwrap_or_default();
            let trusted = format!("{}{before}", ca.certificate);
            Ok((Bundle { ca, leaf, trusted }, true))
        }
    }
}

/// When a certificate ends.
///
/// # Errors
/// Where it is none.
pub fn ends(pem: &str) -> Result<SystemTime, CertificateError> {
    let (_, block) = parse_x509_pem(pem.as_bytes()).map_err(|_| CertificateError::Unreadable)?;
    let parsed = block
        .parse_x509()
        .map_err(|_| CertificateError::Unreadable)?;
    let seconds = u64::try_from(parsed.validity().not_after.timestamp())
        .map_err(|_| CertificateError::Unreadable)?;
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Whether more than a third of its life is left.
fn is_fresh(pem: &str, life: Duration, now: SystemTime) -> bool {
    ends(pem).is_ok_and(|end| end > now + life / 3)
}

fn names_of(pem: &str) -> Vec<String> {
    let names = || {
        let (_, block) = parse_x509_pem(pem.as_bytes()).ok()?;
        let parsed = block.parse_x509().ok()?;
        let alternatives = parsed.subject_alternative_name().ok()??;
        let names = alternatives.value.general_names.iter();
        let dns = names.filter_map(|name| match name {
            x509_parser::extensions::GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        Some(dns.collect())
    };
    names().unwrap_or_default()
}

fn is_signed_by(leaf: &str, ca: &str) -> bool {
    let check = || {
        let (_, leaf) = parse_x509_pem(leaf.as_bytes()).ok()?;
        let (_, ca) = parse_x509_pem(ca.as_bytes()).ok()?;
        let (leaf, ca) = (leaf.parse_x509().ok()?, ca.parse_x509().ok()?);
        Some(leaf.issuer() == ca.subject() && leaf.verify_signature(Some(ca.public_key())).is_ok())
    };
    check().unwrap_or(false)
}

fn authority(now: SystemTime) -> Result<Pair, CertificateError> {
    let mut parameters = CertificateParams::new(Vec::new())?;
    // Of its own name each time, or a client could take the old one for the new one's signer.
    let seconds = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let name = format!("Siding CA {}", seconds.as_secs());
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut parameters, now, CA_LIFE);
    let key = KeyPair::generate()?;
    Ok(Pair {
        certificate: parameters.self_signed(&key)?.pem(),
        key: key.serialize_pem(),
    })
}

fn leaf(ca: &Pair, names: &[String], now: SystemTime) -> Result<Pair, CertificateError> {
    let mut parameters = CertificateParams::new(names)?;
    let name = "Siding webhooks";
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    parameters.use_authority_key_identifier_extension = true;
    valid(&mut parameters, now, LEAF_LIFE);
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, KeyPair::from_pem(&ca.key)?)?;
    let key = KeyPair::generate()?;
    Ok(Pair {
        certificate: parameters.signed_by(&key, &issuer)?.pem(),
        key: key.serialize_pem(),
    })
}

fn valid(parameters: &mut CertificateParams, now: SystemTime, life: Duration) {
    parameters.not_before = (now - BACKDATED).into();
    parameters.not_after = (now + life).into();
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        vec!["siding.siding-system.svc".to_owned()]
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    #[test]
    fn what_is_good_stays() {
        let (first, made) = renewed(None, &names(), now()).unwrap();
        assert!(made);
        assert_eq!(names_of(&first.leaf.certificate), names());
        assert!(is_signed_by(&first.leaf.certificate, &first.ca.certificate));
        assert_eq!(ends(&first.leaf.certificate).unwrap(), now() + LEAF_LIFE);
        let (second, made) = renewed(Some(first.clone()), &names(), now() + 59 * DAY).unwrap();
        assert_eq!((second, made), (first, false));
    }

    #[test]
    fn a_leaf_is_renewed_in_time_under_the_same_ca() {
        let (first, _) = renewed(None, &names(), now()).unwrap();
        let (second, made) = renewed(Some(first.clone()), &names(), now() + 61 * DAY).unwrap();
        assert!(made);
        assert_eq!((&second.ca, &second.trusted), (&first.ca, &first.trusted));
        assert_ne!(second.leaf, first.leaf);
    }

    #[test]
    fn other_names_or_a_leaf_of_another_ca_need_a_new_leaf() {
        let (first, _) = renewed(None, &names(), now()).unwrap();
        let others = vec!["other.svc".to_owned()];
        let (second, _) = renewed(Some(first.clone()), &others, now()).unwrap();
        assert_eq!(names_of(&second.leaf.certificate), others);
        let (stranger, _) = renewed(None, &names(), now() + DAY).unwrap();
        let mixed = Bundle {
            leaf: stranger.leaf,
            ..first.clone()
        };
        let (mended, made) = renewed(Some(mixed), &names(), now()).unwrap();
        assert!(made && is_signed_by(&mended.leaf.certificate, &first.ca.certificate));
    }

    #[test]
    fn a_new_ca_is_trusted_beside_the_old_one_and_no_third() {
        let (first, _) = renewed(None, &names(), now()).unwrap();
        let later = now() + CA_LIFE * 3 / 4;
        let (second, _) = renewed(Some(first.clone()), &names(), later).unwrap();
        assert_eq!(
            second.trusted,
            format!("{}{}", second.ca.certificate, first.ca.certificate)
        );
        assert!(is_signed_by(
            &second.leaf.certificate,
            &second.ca.certificate
        ));
        let (third, _) = renewed(Some(second), &names(), later + CA_LIFE * 3 / 4).unwrap();
        assert_eq!(third.trusted.matches("BEGIN CERTIFICATE").count(), 2);
    }

    #[test]
    fn rubbish_is_replaced() {
        let (mut bundle, _) = renewed(None, &names(), now()).unwrap();
        bundle.ca.certificate = "rubbish".to_owned();
        let (mended, made) = renewed(Some(bundle), &names(), now()).unwrap();
        assert!(made && mended.trusted == mended.ca.certificate);
        assert!(ends("rubbish").is_err());
    }

    #[test]
    fn a_key_is_never_printed() {
        let (bundle, _) = renewed(None, &names(), now()).unwrap();
        assert!(!format!("{bundle:?}").contains("PRIVATE"));
    }
}
