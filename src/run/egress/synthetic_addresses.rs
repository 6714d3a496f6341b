//! Maps names that the run has looked up to synthetic addresses and back.
//!
//! The run gets no real addresses, because it cannot connect to them anyway. Every name gets a synthetic address from
//! 198.18.0.0/15, which no public network uses. When the run connects to such an address, the supervisor translates it
//! back to the name, and guard judges and opens the connection by that name.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

/// The network address of 198.18.0.0/15.
const NET: u32 = 0xc612_0000;
/// Limit on names per run. A name has at most 253 bytes, so all names together take about two megabytes.
const MOST_NAMES: usize = 4096;

/// The names that one run has looked up, and the synthetic address (one that stands for a host name) that guard's DNS
/// server returned for each.
#[derive(Debug, Default)]
pub(super) struct SyntheticAddresses {
    numbers: HashMap<String, u32>,
    /// The names that have been looked up, in the order of their addresses.
    names: Vec<String>,
}

impl SyntheticAddresses {
    /// Returns the synthetic address that stands for a host name during the whole run. `None` if the name is new and
    /// the run has reached its limit of names.
    pub(super) fn address_of(&mut self, name: &str) -> Option<Ipv4Addr> {
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None if self.names.len() >= MOST_NAMES => return None,
            None => {
                let number = u32::try_from(self.names.len()).ok()?;
                self.names.push(name.to_string());
                self.numbers.insert(name.to_string(), number);
                number
            }
        };
        // Skip the network address itself.
        Some(Ipv4Addr::from_bits(NET + 1 + number))
    }

    /// Returns the name for which guard's DNS server returned this synthetic address; `None` for all other
    /// addresses.
    pub(super) fn name_at(&self, address: IpAddr) -> Option<&str> {
        let IpAddr::V4(address) = address else { return None };
        let number = address.to_bits().checked_sub(NET + 1)?;
        self.names.get(usize::try_from(number).ok()?).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_an_address_of_its_own() {
        let mut names = SyntheticAddresses::default();
        let first = names.address_of("a.example").expect("there is room");
        let second = names.address_of("b.example").expect("there is room");
        assert_eq!(first, Ipv4Addr::new(198, 18, 0, 1));
        assert_ne!(first, second);
        assert_eq!(names.address_of("a.example"), Some(first));
        assert_eq!(names.name_at(first.into()), Some("a.example"));
        assert_eq!(names.name_at(second.into()), Some("b.example"));
        for other in ["198.18.0.0", "198.18.0.3", "127.0.0.1", "255.255.255.255", "::1"] {
            assert_eq!(names.name_at(other.parse().expect(other)), None, "{other}");
        }
    }

    #[test]
    fn their_number_is_bounded() {
        let mut names = SyntheticAddresses::default();
        for number in 0..MOST_NAMES {
            assert!(names.address_of(&format!("{number}.example")).is_some());
        }
        assert_eq!(names.address_of("one-more.example"), None);
        assert!(names.address_of("7.example").is_some());
    }
}
