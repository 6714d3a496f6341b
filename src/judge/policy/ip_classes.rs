//! Classifies special-purpose IP addresses: loopback, private networks, and cloud metadata services.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Converts an IPv4-mapped IPv6 address to IPv4, and returns any other address unchanged.
pub fn unmap_ipv4(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Returns the class of a special-purpose address, to which no public host name should resolve; `None` for a public
/// address.
pub fn special_class(address: IpAddr) -> Option<&'static str> {
    match unmap_ipv4(address) {
        IpAddr::V4(v4) => special_v4(v4),
        IpAddr::V6(v6) => special_v6(v6),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    Some(match (a, b, c) {
        (127, ..) => "loopback",
        (169, 254, _) => "link-local, used for cloud metadata",
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => "private",
        (100, 64..=127, _) => "carrier-grade NAT",
        (0, ..) => "unspecified",
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 18..=19, _) | (198, 51, 100) | (203, 0, 113) => "reserved",
        (224..=239, ..) => "multicast",
        (240.., ..) => "reserved",
        // Azure's WireServer, from which virtual machines get their configuration, has this address in a public range.
        (168, 63, 129) if address == Ipv4Addr::new(168, 63, 129, 16) => "cloud metadata",
        _ => return None,
    })
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let words = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        special_v4(Ipv4Addr::new(a, b, c, d))
    };
    if address.is_loopback() {
        return Some("loopback");
    }
    match words {
        [0, 0, 0, 0, 0, 0, high, low] => embedded(high, low).or(Some("reserved")),
        // Addresses with a translation prefix (NAT64, 6to4) lead to the IPv4 address that they contain.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x64, 0xff9b, ..] => Some("reserved"),
        [0x2002, high, low, ..] => embedded(high, low).or(Some("reserved")),
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, ..] | [0x100, 0, 0, ..] | [0x5f00, ..] => {
            Some("reserved")
        }
        [0xfe80..=0xfebf, ..] => Some("link-local"),
        [0xfc00..=0xfdff, ..] => Some("private"),
        [0xfec0..=0xfeff, ..] => Some("private"),
        [0xff00..=0xffff, ..] => Some("multicast"),
        [0x2000..=0x3fff, ..] => None,
        _ => Some("reserved"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_special() {
        for text in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.100.100.200",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "198.18.0.1",
            "168.63.129.16",
            "::1",
            "::",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "fe80::1",
            "fd00:ec2::254",
            "ff02::1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "2001:db8::1",
            "fec0::1",
            "2001::1",
            "64:ff9b:1::1",
        ] {
            let address: IpAddr = text.parse().unwrap_or_else(|_| panic!("{text}"));
            assert!(special_class(address).is_some(), "{text}");
        }
        for text in [
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "2a00:1450::1",
            "2606:4700::1111",
            "64:ff9b::808:808",
            "168.63.129.17",
        ] {
            let address: IpAddr = text.parse().unwrap_or_else(|_| panic!("{text}"));
            assert_eq!(special_class(address), None, "{text}");
        }
    }
}
