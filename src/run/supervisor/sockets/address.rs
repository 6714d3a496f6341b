//! Determines what the address in a socket call refers to.

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::Ipv6V6Only;

use crate::judge::policy::unmap_ipv4;
use crate::sys::socket;

/// What a raw socket address refers to.
pub(super) enum Target {
    /// A unix socket at this path, as the caller wrote it.
    UnixPath(Vec<u8>),
    /// An abstract or unnamed unix socket.
    UnixAbstract,
    Internet(SocketAddr),
    /// `AF_UNSPEC`, with which a connect ends the association of a socket with its peer.
    Unspecified,
    /// A netlink route socket without multicast subscriptions.
    Route,
    Other,
}

pub(super) fn target(address: &[u8]) -> Option<Target> {
    let body = address.get(2..).unwrap_or_default();
    let port = || body.first_chunk::<2>().map(|bytes| u16::from_be_bytes(*bytes));
    Some(match socket::family(address)? {
        libc::AF_UNSPEC => Target::Unspecified,
        libc::AF_UNIX => match body.first() {
            None | Some(0) => Target::UnixAbstract,
            Some(_) => Target::UnixPath(body.split(|&byte| byte == 0).next()?.to_vec()),
        },
        libc::AF_INET => {
            let ip: [u8; 4] = *body.get(2..)?.first_chunk()?;
            Target::Internet(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port()?))
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = *body.get(6..)?.first_chunk()?;
            Target::Internet(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)), port()?))
        }
        libc::AF_NETLINK => {
            let groups = body.get(6..)?.first_chunk::<4>()?;
            if *groups == [0; 4] { Target::Route } else { Target::Other }
        }
        _ => Target::Other,
    })
}

pub(super) fn is_loopback(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
    }
}

/// The DNS port.
pub(super) const NAME_SERVICE: u16 = 53;
/// The maximum number of bytes that guard reads from `/etc/resolv.conf`.
const LONGEST_CONFIGURATION: u64 = 64 << 10;

/// Returns true if C libraries send DNS queries to this address: `/etc/resolv.conf` lists it, or it is the default,
/// 127.0.0.1. Reads the file every time, because it changes with the machine's networks.
pub(super) fn is_name_server(ip: IpAddr) -> bool {
    let mut text = String::new();
    if let Ok(file) = std::fs::File::open("/etc/resolv.conf") {
        let _ = file.take(LONGEST_CONFIGURATION).read_to_string(&mut text);
    }
    let ip = unmap_ipv4(ip);
    ip == Ipv4Addr::LOCALHOST || name_servers(&text).any(|server| server == ip)
}

fn name_servers(configuration: &str) -> impl Iterator<Item = IpAddr> {
    configuration.lines().filter_map(|line| {
        let address = line.trim_start().strip_prefix("nameserver")?;
        let address = address.strip_prefix([' ', '\t'])?.split_whitespace().next()?;
        // Drop the interface of a link-local address.
        address.split('%').next()?.parse().ok().map(unmap_ipv4)
    })
}

/// Converts an IPv4 address to its IPv6-mapped form. Returns an IPv6 address unchanged.
pub(super) fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Returns the loopback address to bind instead of the requested address; `None` if the requested address belongs to
/// another interface. `::` becomes `::1` for a socket that accepts only IPv6. Otherwise it becomes 127.0.0.1: most
/// clients use that address, and clients that connect to `localhost` try both.
pub(super) fn loopback_instead_of(fd: BorrowedFd<'_>, at: SocketAddr) -> Option<SocketAddr> {
    let here = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), at.port());
    match at.ip() {
        ip if is_loopback(ip) => Some(at),
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Some(here),
        IpAddr::V6(ip) if ip.to_ipv4_mapped() == Some(Ipv4Addr::UNSPECIFIED) => Some(mapped(here)),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => match getsockopt(&fd, Ipv6V6Only) {
            Ok(false) => Some(mapped(here)),
            Ok(true) | Err(_) => Some(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), at.port())),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_of_a_configuration() {
        let text = "# nameserver 9.9.9.9\nnameserver 10.0.0.53\n nameserver\tfe80::1%eth0 \nsearch a\nnameserverx 1.2.3.4\n\
                    nameserver ::ffff:10.0.0.54\nnameserver nonsense\n";
        let found: Vec<String> = name_servers(text).map(|ip| ip.to_string()).collect();
        assert_eq!(found, ["10.0.0.53", "fe80::1", "10.0.0.54"]);
    }
}
