//! Who may connect.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// Who may connect to a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peers {
    /// Whoever gets through to it.
    Any,
    /// Addresses in one of these networks only.
    Networks(Vec<Network>),
}

impl Peers {
    /// Whether a peer of this address may connect. An IPv4 address that came over an IPv6 socket
    /// counts as IPv4.
    #[must_use]
    pub fn admit(&self, peer: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Networks(networks) => {
                let peer = peer.to_canonical();
                networks.iter().any(|network| network.0.contains(&peer))
            }
        }
    }
}

/// A network: an address and the bits of it that count, such as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network(IpNet);

/// A text is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// It is neither an address nor address and length.
    #[error("it is neither an address nor a CIDR such as '10.0.0.0/8' or 'fd00::/8'")]
    Form,
    /// It has bits beyond its length.
    #[error("it has bits beyond its length: the network is {network}")]
    HostBits {
        /// The network that it lies in.
        network: Network,
    },
}

impl FromStr for Network {
    type Err = NetworkError;

    /// A CIDR, or an address, which stands for itself alone.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let net = match text.parse::<IpAddr>() {
            Ok(address) => IpNet::from(address),
            Err(_) => text.parse::<IpNet>().map_err(|_| NetworkError::Form)?,
        };
        if net.trunc() == net {
            Ok(Self(net))
        } else {
            let network = Self(net.trunc());
            Err(NetworkError::HostBits { network })
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn networks_admit_what_lies_in_them() {
        let networks = ["10.1.0.0/16", "192.168.0.7", "fd00::/8", "::1"];
        let peers = Peers::Networks(networks.map(|text| text.parse().unwrap()).to_vec());
        for (peer, want) in [
            ("10.1.2.3", true),
            ("10.2.0.0", false),
            ("192.168.0.7", true),
            ("192.168.0.8", false),
            ("fd12::1", true),
            ("fe80::1", false),
            ("::1", true),
            ("127.0.0.1", false),
            ("::ffff:10.1.2.3", true),
            ("::ffff:10.2.2.3", false),
        ] {
            let peer: IpAddr = peer.parse().unwrap();
            assert_eq!(peers.admit(peer), want, "{peer}");
            assert!(Peers::Any.admit(peer));
            assert!(!Peers::Networks(Vec::new()).admit(peer));
        }
    }

    #[test]
    fn what_is_no_network_says_why() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "host", "10.0.0.0/", "::/129"] {
            assert_eq!(
                text.parse::<Network>().unwrap_err(),
                NetworkError::Form,
                "{text}"
            );
        }
        assert_eq!(
            "10.1.2.3/8".parse::<Network>().unwrap_err().to_string(),
            "it has bits beyond its length: the network is 10.0.0.0/8"
        );
        assert_eq!(
            "10.0.0.1".parse::<Network>().unwrap().to_string(),
            "10.0.0.1/32"
        );
    }
}
