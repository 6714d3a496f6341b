//! The two seccomp filters together must do what the list of system calls says.

use guard::sandbox::{self, Condition, Filters};
use proptest::prelude::*;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
const THIS_MACHINE: u32 = if cfg!(target_arch = "x86_64") { 0xC000_003E } else { 0xC000_00B7 };

/// Interprets a seccomp program as the kernel does. Returns its answer.
fn interpret(program: &[libc::sock_filter], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let load = |at: u32| match at {
        0 => number,
        4 => architecture,
        at if at >= 16 && at % 8 == 0 => arguments[(at as usize - 16) / 8] as u32,
        other => panic!("loads {other}"),
    };
    let (mut at, mut held) = (0, 0);
    loop {
        let step = program[at];
        at += 1;
        let jump = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
        match u32::from(step.code) {
            0x20 => held = load(step.k),
            0x54 => held &= step.k,
            0x05 => at += step.k as usize,
            0x15 => at += jump(held == step.k),
            0x35 => at += jump(held >= step.k),
            0x06 => return step.k,
            other => panic!("unknown instruction {other:#x}"),
        }
    }
}

/// Returns the kernel's answer if both filters are installed: the answer of the filter with the stricter action.
fn answer(filters: &Filters, architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let of = |program: &[libc::sock_filter]| interpret(program, architecture, number, arguments);
    let action = |answer: &u32| (answer & libc::SECCOMP_RET_ACTION_FULL).cast_signed();
    [of(&filters.deny), of(&filters.notify)].into_iter().min_by_key(action).unwrap()
}

/// The answer that the list of system calls (`policies/syscalls.toml`) demands for some calls, if their arguments
/// meet the conditions.
struct Said {
    numbers: Vec<u32>,
    conditions: Vec<Condition>,
    answer: u32,
}

impl Said {
    fn of(names: &[&str], conditions: Vec<Condition>, answer: u32) -> Self {
        let number = |name: &&str| guard::sys::syscall_numbers::number(name).map(|number| number as u32);
        Self { numbers: names.iter().filter_map(number).collect(), conditions, answer }
    }

    fn holds(&self, arguments: [u64; 6]) -> bool {
        self.conditions.iter().all(|condition| {
            let looked_at = arguments[usize::from(condition.argument)] as u32 & condition.mask;
            condition.values.contains(&looked_at) != condition.negated
        })
    }
}

/// Returns the expected answers in order, refusals first: the first entry that matches a call decides. `shared` is
/// true if the run shares its namespaces with the host.
fn said(list: &sandbox::List, shared: bool) -> Vec<Said> {
    let mut all = Vec::new();
    let entries =
        list.deny.iter().map(|entry| (entry, true)).chain(list.ask.iter().map(|entry| (entry, false)));
    for (entry, is_refused) in entries.filter(|(entry, _)| shared || entry.only.is_none()) {
        let errno = libc::SECCOMP_RET_ERRNO | entry.errno.unwrap_or_default().number();
        all.push(Said {
            numbers: entry.numbers().unwrap(),
            conditions: entry.conditions().unwrap(),
            answer: if is_refused { errno } else { NOTIFY },
        });
    }
    let always = ["execve", "execveat", "connect", "bind", "listen", "inotify_add_watch"];
    all.push(Said::of(&always, Vec::new(), NOTIFY));
    if shared {
        all.push(Said::of(sandbox::METADATA, Vec::new(), NOTIFY));
        for &(name, argument) in sandbox::ON_PROCESSES {
            let another = Condition { argument, mask: u32::MAX, values: vec![0], negated: true };
            all.push(Said::of(&[name], vec![another], NOTIFY));
        }
    }
    all
}

fn expected(said: &[Said], number: u32, arguments: [u64; 6]) -> u32 {
    let first = said.iter().find(|one| one.numbers.contains(&number) && one.holds(arguments));
    first.map_or(ALLOW, |one| one.answer)
}

/// Generates arguments of system calls: some meet conditions of the list, others do not.
fn argument() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..20_u64,
        (0..32_u32).prop_map(|bit| 1 << bit),
        Just(0xffff_ffff),
        Just(u64::MAX),
        (0..64_u64).prop_map(|low| low | 1 << 32),
        any::<u64>(),
    ]
}

// slow
#[test]
fn filters_match_the_system_call_list() {
    let list = sandbox::parse_list(sandbox::LIST).unwrap();
    let mut refused = 0;
    for shared in [false, true] {
        let said = said(&list, shared);
        let filters = sandbox::filters(shared, false).unwrap();
        // Every system call, with arguments that are all 0.
        for number in 0..1024 {
            let got = answer(&filters, THIS_MACHINE, number, [0; 6]);
            assert_eq!(got, expected(&said, number, [0; 6]), "call {number}");
            refused += u32::from(got != ALLOW);
        }
        // Each filter alone must kill a process that makes calls of another architecture.
        for filter in [&filters.deny, &filters.notify] {
            assert_eq!(interpret(filter, 0x4000_0003, 1, [0; 6]), KILL, "i386");
            assert_eq!(interpret(filter, THIS_MACHINE, 0x4000_0001, [0; 6]), KILL, "x32");
        }
        let numbers: Vec<u32> = said.iter().flat_map(|one| one.numbers.clone()).collect();
        proptest!(ProptestConfig::with_cases(20_000), |(
            number in proptest::sample::select(numbers),
            arguments in proptest::array::uniform6(argument()),
        )| {
            let got = answer(&filters, THIS_MACHINE, number, arguments);
            prop_assert_eq!(got, expected(&said, number, arguments));
        });
    }
    assert!(refused > 100, "the list refuses and asks about many calls: {refused}");
}

/// If the supervisor counts processes, the filter must notify it of every fork, and must still refuse forbidden flags.
#[test]
fn filter_notifies_of_forks_and_refuses_forbidden_flags() {
    let clone = libc::SYS_clone as u32;
    let flags = |flags: i32| [u64::from(flags as u32), 0, 0, 0, 0, 0];
    for (forks, plain) in [(false, ALLOW), (true, NOTIFY)] {
        let filters = sandbox::filters(false, forks).unwrap();
        assert_eq!(answer(&filters, THIS_MACHINE, clone, flags(libc::SIGCHLD)), plain);
        let refused = answer(&filters, THIS_MACHINE, clone, flags(libc::CLONE_NEWUSER));
        assert_eq!(refused, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    }
}

/// The helper that inspects an agent's files may start threads, but no processes, and may not use sockets.
#[test]
fn filter_of_helpers_allows_threads_but_no_processes_or_sockets() {
    let eperm = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let enosys = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    let clone = |flags: i32| (libc::SYS_clone, flags as u64);
    for (call, alone, with_processes) in [
        (clone(libc::CLONE_THREAD | libc::CLONE_VM), ALLOW, ALLOW),
        (clone(libc::SIGCHLD), eperm, ALLOW),
        (clone(libc::CLONE_THREAD | libc::CLONE_NEWUSER), eperm, eperm),
        ((libc::SYS_clone3, 0), enosys, enosys),
        ((libc::SYS_socket, 1), eperm, eperm),
        ((libc::SYS_connect, 0), eperm, eperm),
        ((libc::SYS_fchmod, 0), eperm, ALLOW),
        ((libc::SYS_setsockopt, 0), eperm, ALLOW),
        ((libc::SYS_openat, 0), ALLOW, ALLOW),
        ((libc::SYS_read, 0), ALLOW, ALLOW),
    ] {
        let ((number, first), numbers) = (call, [(true, alone), (false, with_processes)]);
        for (is_alone, wanted) in numbers {
            let filter = sandbox::helper_filter(is_alone).unwrap();
            let got = interpret(&filter, THIS_MACHINE, number as u32, [first, 0, 0, 0, 0, 0]);
            assert_eq!(got, wanted, "call {number} with {first:#x}, alone: {is_alone}");
        }
    }
}

/// A helper must not truncate files that it may only read. Before ABI 3 Landlock does not prevent this, and helpers
/// have no mount namespace, so the filter must.
#[test]
fn filter_of_helpers_refuses_truncation_of_read_only_files() {
    let number = |name: &str| guard::sys::syscall_numbers::number(name).map(|number| number as u32);
    let denied = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    for is_alone in [true, false] {
        let filter = sandbox::helper_filter(is_alone).unwrap();
        let answer =
            |name: &str, arguments| number(name).map(|n| interpret(&filter, THIS_MACHINE, n, arguments));
        assert_eq!(answer("truncate", [0; 6]), Some(denied));
        let open = |flags: i32| answer("openat", [0, 0, flags as u64, 0, 0, 0]);
        assert_eq!(open(libc::O_RDONLY | libc::O_TRUNC), Some(denied));
        assert_eq!(open(libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC), Some(ALLOW));
        assert_eq!(open(libc::O_RDONLY), Some(ALLOW));
    }
}
