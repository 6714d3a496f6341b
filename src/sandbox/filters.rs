//! The seccomp filters that `build.rs` has compiled from `policies/syscalls.toml`. Compiling them at the start of a run
//! would cost every launch 0.65 ms.

use libc::sock_filter;

use super::SandboxError;
use super::deny_filter::{Filters, LIST, compile, compile_helper, parse_list};

/// The filters for every kind of run and helper process. An index is 1 if the condition of its name holds.
struct Embedded {
    /// By whether the run shares its namespaces with the host.
    deny: [&'static [sock_filter]; 2],
    /// By whether the run shares its namespaces, and by whether the supervisor decides about new processes.
    notify: [[&'static [sock_filter]; 2]; 2],
    /// By whether the helper may start no processes.
    helper: [&'static [sock_filter]; 2],
}

const fn step(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

// Defines `EMBEDDED: Option<Embedded>`, which is `None` if guard was compiled on another architecture.
include!(concat!(env!("OUT_DIR"), "/filters.rs"));

/// Returns the filters of a run. `shared` is true if the run shares its namespaces with the host. `forks` is true if
/// the supervisor decides about every new process and thread.
pub fn filters(shared: bool, forks: bool) -> Result<Filters, SandboxError> {
    let Some(embedded) = &EMBEDDED else { return compile(&parse_list(LIST)?, shared, forks) };
    let (shared, forks) = (usize::from(shared), usize::from(forks));
    Ok(Filters { deny: embedded.deny[shared].to_vec(), notify: embedded.notify[shared][forks].to_vec() })
}

/// Returns the filter for a helper process of guard, which may start no processes if `no_children` is true.
pub fn helper_filter(no_children: bool) -> Result<Vec<sock_filter>, SandboxError> {
    match &EMBEDDED {
        Some(embedded) => Ok(embedded.helper[usize::from(no_children)].to_vec()),
        None => compile_helper(&parse_list(LIST)?, no_children),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(filter: &[sock_filter]) -> Vec<(u16, u8, u8, u32)> {
        filter.iter().map(|step| (step.code, step.jt, step.jf, step.k)).collect()
    }

    #[test]
    fn embedded_filters_are_those_of_the_list() -> Result<(), SandboxError> {
        assert!(EMBEDDED.is_some());
        let list = parse_list(LIST)?;
        for shared in [false, true] {
            for forks in [false, true] {
                let (embedded, compiled) = (filters(shared, forks)?, compile(&list, shared, forks)?);
                assert_eq!(steps(&embedded.deny), steps(&compiled.deny));
                assert_eq!(steps(&embedded.notify), steps(&compiled.notify));
            }
        }
        for no_children in [false, true] {
            let compiled = compile_helper(&list, no_children)?;
            assert_eq!(steps(&helper_filter(no_children)?), steps(&compiled));
        }
        Ok(())
    }
}
