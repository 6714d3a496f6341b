//! The system call filter: what is kept ahead of time is what the list says, and the program does what the list says.

use std::collections::BTreeMap;

use guard::sandbox::{self, Action, Otherwise, Treatment};
use proptest::prelude::*;

/// `GUARD_UPDATE_FILTERS=1 cargo test filter` writes the programs after the list has changed.
#[test]
#[cfg(target_arch = "x86_64")]
fn the_filter_kept_ahead_of_time_is_made_from_the_list() {
    let list = sandbox::read(sandbox::LIST).unwrap();
    let made =
        sandbox::encode(&sandbox::compile(&list, false).unwrap(), &sandbox::compile(&list, true).unwrap());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/policies/syscalls.x86_64.bin");
    if std::env::var_os("GUARD_UPDATE_FILTERS").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    let kept = std::fs::read(path).unwrap();
    assert!(kept == made, "policies/syscalls.x86_64.bin is stale: GUARD_UPDATE_FILTERS=1 cargo test filter");
    // What a run uses, from the program as it was compiled with the file.
    for shared in [false, true] {
        let same = |a: &libc::sock_filter, b: &libc::sock_filter| {
            (a.code, a.jt, a.jf, a.k) == (b.code, b.jt, b.jf, b.k)
        };
        let used = sandbox::filter(shared).unwrap();
        let fresh = sandbox::compile(&list, shared).unwrap();
        assert!(used.len() == fresh.len() && used.iter().zip(&fresh).all(|(a, b)| same(a, b)));
    }
}

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;
const THIS_MACHINE: u32 = if cfg!(target_arch = "x86_64") { 0xC000_003E } else { 0xC000_00B7 };

/// What the kernel would do with a program, by the meaning of its instructions.
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

/// What should become of a call, by the list alone.
fn expected(calls: &BTreeMap<u32, Treatment>, number: u32, arguments: [u64; 6]) -> u32 {
    let Some(treatment) = calls.get(&number) else { return ALLOW };
    let low = |argument: u8| arguments[usize::from(argument)] as u32;
    for check in &treatment.checks {
        let holds = check.conditions.iter().all(|condition| {
            let is_one = condition.values.contains(&(low(condition.argument) & condition.mask));
            is_one != condition.negated
        });
        if holds {
            return match check.action {
                Action::Errno(errno) => libc::SECCOMP_RET_ERRNO | errno,
                Action::Notify => NOTIFY,
            };
        }
    }
    match treatment.otherwise {
        Otherwise::Allow => ALLOW,
        Otherwise::Errno(errno) => libc::SECCOMP_RET_ERRNO | errno,
        Otherwise::Notify => NOTIFY,
        Otherwise::NotifyUnlessZero(argument) if low(argument) == 0 => ALLOW,
        Otherwise::NotifyUnlessZero(_) => NOTIFY,
    }
}

/// Arguments that the list's conditions are about, and others.
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

#[test]
fn the_filter_does_what_the_list_says() {
    let list = sandbox::read(sandbox::LIST).unwrap();
    let mut refused = 0;
    for shared in [false, true] {
        let calls = sandbox::treatments(&list, shared).unwrap();
        let program = sandbox::compile(&list, shared).unwrap();
        // Every call there is, plain.
        for number in 0..1024 {
            let got = interpret(&program, THIS_MACHINE, number, [0; 6]);
            assert_eq!(got, expected(&calls, number, [0; 6]), "call {number}");
            refused += u32::from(got != ALLOW);
        }
        assert_eq!(interpret(&program, 0x4000_0003, 1, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
        assert_eq!(interpret(&program, THIS_MACHINE, 0x4000_0001, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
        let numbers: Vec<u32> = calls.keys().copied().collect();
        proptest!(ProptestConfig::with_cases(20_000), |(
            number in proptest::sample::select(numbers),
            arguments in proptest::array::uniform6(argument()),
        )| {
            let got = interpret(&program, THIS_MACHINE, number, arguments);
            prop_assert_eq!(got, expected(&calls, number, arguments));
        });
    }
    assert!(refused > 100, "the list refuses and asks about many calls: {refused}");
}

/// Programs as the kernel would take them: every step leads forward, and the last one is an answer.
fn programs() -> impl Strategy<Value = Vec<libc::sock_filter>> {
    let word = prop_oneof![Just(0_u32), Just(4), Just(16), Just(24)];
    let value = 0..4_u32;
    let step = prop_oneof![
        3 => word.prop_map(|k| (0x20, k, 0_u8, 0_u8)),
        1 => value.clone().prop_map(|k| (0x54, k, 0, 0)),
        1 => (0..6_u32).prop_map(|k| (0x05, k, 0, 0)),
        4 => (value.clone(), 0..12_u8, 0..12_u8).prop_map(|(k, jt, jf)| (0x15, k, jt, jf)),
        2 => (value.clone(), any::<u8>(), 0..3_u8).prop_map(|(k, jt, jf)| (0x35, k, jt, jf)),
        3 => value.prop_map(|k| (0x06, k, 0, 0)),
    ];
    proptest::collection::vec(step, 0..400).prop_map(|steps| {
        let count = steps.len();
        let within = |at: usize, distance: u32| distance.min((count - at - 1) as u32);
        let step = |(at, (code, k, jt, jf)): (usize, (u16, u32, u8, u8))| libc::sock_filter {
            code,
            k: if code == 0x05 { within(at, k) } else { k },
            jt: within(at, u32::from(jt)) as u8,
            jf: within(at, u32::from(jf)) as u8,
        };
        let mut program: Vec<_> = steps.into_iter().enumerate().map(step).collect();
        program.push(libc::sock_filter { code: 0x06, k: 9, jt: 0, jf: 0 });
        program
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn a_shorter_program_gives_the_same_answers(
        program in programs(),
        words in proptest::collection::vec((0..4_u32, 0..4_u32, 0..4_u64, 0..4_u64), 1..20),
    ) {
        let short = sandbox::shorten(&program);
        prop_assert!(short.len() <= program.len());
        for (architecture, number, first, second) in words {
            let arguments = [first, second, 0, 0, 0, 0];
            let answer = |program: &[libc::sock_filter]| interpret(program, architecture, number, arguments);
            prop_assert_eq!(answer(&short), answer(&program));
        }
    }
}
