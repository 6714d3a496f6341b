//! Lists which layers of the sandbox enforce which boundary. That depends on the kernel's Landlock ABI and on whether
//! the run has namespaces.
//!
//! Older Landlock versions restrict fewer operations. With namespaces, other layers enforce the remaining boundaries.
//! If no layer enforces some boundary, guard does not start a run.

use serde::Serialize;

/// The first Landlock ABI that can grant renames and links between directories, which builds need (Linux 5.19).
pub(super) const LANDLOCK_RENAMES: i32 = 2;
/// The first Landlock ABI that restricts truncation (Linux 6.2).
const LANDLOCK_TRUNCATION: i32 = 3;
/// The first Landlock ABI that restricts TCP (Linux 6.7).
const LANDLOCK_TCP: i32 = 4;
/// The first Landlock ABI that restricts ioctls on devices (Linux 6.10).
const LANDLOCK_DEVICES: i32 = 5;
/// The first Landlock ABI that restricts signals and abstract unix sockets (Linux 6.12).
pub(super) const LANDLOCK_SCOPES: i32 = 6;

/// A boundary of every run, with the layers of the sandbox that enforce it. Each of these layers is sufficient on its
/// own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldBoundary {
    /// The kind of operation that the run cannot do beyond its grants, such as `file-access` or `signals`.
    pub name: &'static str,
    /// The layers that enforce this boundary, such as `landlock`. Empty if no layer does.
    pub held_by: Vec<&'static str>,
}

/// Returns the boundaries of a run with or without namespaces, on a kernel with the Landlock ABI `landlock`.
pub fn held_boundaries(landlock: i32, has_namespaces: bool) -> Vec<HeldBoundary> {
    let since = |abi: i32| (landlock >= abi).then_some("landlock");
    let with = |layer: &'static str| has_namespaces.then_some(layer);
    let boundary = |name, layers: &[Option<&'static str>]| HeldBoundary {
        name,
        held_by: layers.iter().flatten().copied().collect(),
    };
    let shared = |layer: &'static str| (!has_namespaces).then_some(layer);
    vec![
        boundary("file-access", &[since(1), with("mounts")]),
        boundary("file-truncation", &[since(LANDLOCK_TRUNCATION), with("mounts")]),
        boundary("file-metadata", &[with("mounts"), shared("supervisor")]),
        // Before ABI 5, a process can make ioctls only on a device that it may open. Landlock checks every open
        // except one with the access mode 3, which allows only ioctls, and seccomp denies such an open.
        boundary("device-ioctls", &[since(LANDLOCK_DEVICES), Some("seccomp")]),
        boundary("tcp", &[since(LANDLOCK_TCP), Some("supervisor")]),
        boundary("abstract-sockets", &[since(LANDLOCK_SCOPES), Some("supervisor")]),
        boundary("signals", &[since(LANDLOCK_SCOPES), with("pid-namespace")]),
        boundary("tracing", &[Some("seccomp"), with("pid-namespace")]),
        boundary("program-starts", &[Some("supervisor")]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unheld(landlock: i32, has_namespaces: bool) -> Vec<&'static str> {
        let boundaries = held_boundaries(landlock, has_namespaces).into_iter();
        boundaries.filter(|boundary| boundary.held_by.is_empty()).map(|boundary| boundary.name).collect()
    }

    #[test]
    fn namespaces_hold_what_an_older_landlock_does_not_cover() {
        for landlock in LANDLOCK_RENAMES..=LANDLOCK_SCOPES {
            assert_eq!(unheld(landlock, true), [""; 0], "ABI {landlock}");
        }
        assert_eq!(unheld(LANDLOCK_SCOPES, false), [""; 0]);
        assert_eq!(unheld(LANDLOCK_DEVICES, false), ["signals"]);
        assert_eq!(unheld(LANDLOCK_RENAMES, false), ["file-truncation", "signals"]);
    }
}
