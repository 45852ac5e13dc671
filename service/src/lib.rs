//! What every long-running process of Siding needs at its start.

#![forbid(unsafe_code)]

pub mod http;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// Takes the address for a server that does not block.
///
/// `[::]` takes both families; where the kernel has no IPv6 it means `0.0.0.0`, so that one address serves on
/// every node.
///
/// # Errors
/// What the kernel says of the address that was asked for.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    listen_by(address, TcpListener::bind)
}

fn listen_by(
    address: SocketAddr,
    bind: impl Fn(SocketAddr) -> io::Result<TcpListener>,
) -> io::Result<TcpListener> {
    let bound = match bind(address) {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && lacks_ipv6(&error) => {
            let ipv4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port());
            bind(ipv4).map_err(|_| error)
        }
        bound => bound,
    };
    let listener = bound?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// `EAFNOSUPPORT`: booted without IPv6; `EADDRNOTAVAIL`: switched off by sysctl.
fn lacks_ipv6(error: &io::Error) -> bool {
    const EAFNOSUPPORT: i32 = 97;
    error.raw_os_error() == Some(EAFNOSUPPORT) || error.kind() == io::ErrorKind::AddrNotAvailable
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn any(port: u16) -> SocketAddr {
        SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)
    }

    #[test]
    fn without_ipv6_both_families_are_the_one_there_is() {
        for code in [97, 99] {
            let without = |address: SocketAddr| match address {
                SocketAddr::V6(_) => Err(io::Error::from_raw_os_error(code)),
                SocketAddr::V4(_) => TcpListener::bind(address),
            };
            let listener = listen_by(any(0), without).unwrap();
            assert_eq!(
                listener.local_addr().unwrap().ip(),
                Ipv4Addr::UNSPECIFIED,
                "{code}"
            );
            let named = "[::1]:0".parse().unwrap();
            let error = listen_by(named, without).unwrap_err();
            assert_eq!(
                error.raw_os_error(),
                Some(code),
                "what was named is not replaced"
            );
        }
    }

    #[test]
    fn a_port_that_is_taken_is_an_error() {
        let taken = listen(any(0)).unwrap();
        let error = listen(any(taken.local_addr().unwrap().port())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
