//! Parses any text as a host and as entries of a policy. A host must be the same after it is printed and parsed again,
//! and an entry that covers another one must allow every connection that the other one allows.
#![no_main]

use guard::judge::policy::{Host, HostAccess, HostEntry};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (left, right) = text.split_once('\n').unwrap_or((text, ""));
    if let Ok(host) = Host::parse(left) {
        assert_eq!(Host::parse(&host.to_string()), Ok(host));
    }
    let (Ok(wide), Ok(narrow)) = (HostEntry::parse(left), HostEntry::parse(right)) else { return };
    for host in ["a.b", "b", "10.0.0.1", "::1", "127.0.0.1"].iter().filter_map(|host| Host::parse(host).ok())
    {
        for way in [HostAccess::Tunnel, HostAccess::Request { method: "GET", path: "/a" }] {
            let allowed = |entry: &HostEntry| entry.matches(&host, 80, way);
            assert!(!wide.covers(&narrow) || !allowed(&narrow) || allowed(&wide), "{wide} covers {narrow}");
        }
    }
});
