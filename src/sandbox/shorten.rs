//! A seccomp program → a shorter one with the same answers.
//!
//! The kernel translates a program every time it is installed, step by step, and a run waits for that. So nothing is loaded
//! that is loaded already, and an answer that stands in reach is not written down again.

use libc::sock_filter;

use super::program::{LOAD, RETURN};

const ALWAYS: u32 = libc::BPF_JMP | libc::BPF_JA;
/// The farthest that a comparison jumps, counted from the step behind it.
const FARTHEST: usize = 255;

/// A step, with the places it leads to instead of distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    code: u16,
    k: u32,
    /// Where it goes on; the same twice where there is no choice, none after an answer.
    next: Option<[usize; 2]>,
}

/// What has been loaded when a step is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loaded {
    /// The step is not reached.
    Never,
    /// This word of the kernel's data, whichever way.
    Word(u32),
    /// One thing or another.
    Anything,
}

impl Loaded {
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, known) | (known, Self::Never) => known,
            (known, same) if known == same => known,
            _ => Self::Anything,
        }
    }
}

impl Step {
    fn is_comparison(&self) -> bool {
        u32::from(self.code) & 0x07 == libc::BPF_JMP && u32::from(self.code) != ALWAYS
    }
}

/// Makes it as short as it gets. A program that leads beyond its own end is given back as it is.
pub fn shorten(program: &[sock_filter]) -> Vec<sock_filter> {
    let Some(mut steps) = read(program) else { return program.to_vec() };
    loop {
        let before = steps.len();
        share_answers(&mut steps);
        let loaded = loaded(&steps);
        skip_loads(&mut steps, &loaded);
        steps = without_unreached(&steps);
        if steps.len() == before {
            return write(&steps).unwrap_or_else(|| program.to_vec());
        }
    }
}

fn read(program: &[sock_filter]) -> Option<Vec<Step>> {
    let step = |(at, step): (usize, &sock_filter)| {
        let behind = |distance: usize| Some(at + 1 + distance).filter(|&to| to < program.len());
        let next = match u32::from(step.code) {
            RETURN => None,
            ALWAYS => Some([behind(step.k as usize)?; 2]),
            code if code & 0x07 == libc::BPF_JMP => {
                Some([behind(usize::from(step.jt))?, behind(usize::from(step.jf))?])
            }
            _ => Some([behind(0)?; 2]),
        };
        Some(Step { code: step.code, k: step.k, next })
    };
    program.iter().enumerate().map(step).collect()
}

/// Every comparison that leads to an answer leads to the last one of its kind in reach, whose others nobody needs then.
fn share_answers(steps: &mut [Step]) {
    for at in 0..steps.len() {
        if !steps[at].is_comparison() {
            continue;
        }
        let reach = (at + 2 + FARTHEST).min(steps.len());
        let Some(next) = steps[at].next else { continue };
        let last = |to: usize| {
            let answer = steps[to];
            let same = |other: &usize| steps[*other] == answer;
            if answer.next.is_none() { (to..reach).rev().find(same).unwrap_or(to) } else { to }
        };
        steps[at].next = Some(next.map(last));
    }
}

/// What is loaded before each step. Steps lead forward only, so one look is enough.
fn loaded(steps: &[Step]) -> Vec<Loaded> {
    let mut before = vec![Loaded::Never; steps.len()];
    if let Some(first) = before.first_mut() {
        *first = Loaded::Anything;
    }
    for (at, step) in steps.iter().enumerate() {
        let Some(next) = step.next else { continue };
        let after = match (before[at], u32::from(step.code)) {
            (Loaded::Never, _) => continue,
            (_, LOAD) => Loaded::Word(step.k),
            (known, code) if code & 0x07 == libc::BPF_JMP => known,
            _ => Loaded::Anything,
        };
        for to in next {
            before[to] = before[to].or(after);
        }
    }
    before
}

/// Nobody goes where only that is loaded which is loaded already.
fn skip_loads(steps: &mut [Step], loaded: &[Loaded]) {
    let skipped: Vec<usize> = (0..steps.len())
        .map(|at| {
            let is_needless = u32::from(steps[at].code) == LOAD && loaded[at] == Loaded::Word(steps[at].k);
            if is_needless { at + 1 } else { at }
        })
        .collect();
    // What was skipped to may be skipped as well: from behind, every one of them is settled already.
    let mut settled = skipped;
    for at in (0..settled.len()).rev() {
        if settled[at] != at {
            settled[at] = settled[settled[at]];
        }
    }
    for step in steps.iter_mut() {
        // Only a comparison, and a jump, can choose; what falls through to a needless load is left alone.
        let code = u32::from(step.code);
        if code & 0x07 == libc::BPF_JMP {
            step.next = step.next.map(|next| next.map(|to| settled[to]));
        }
    }
}

fn without_unreached(steps: &[Step]) -> Vec<Step> {
    let mut is_reached = vec![false; steps.len()];
    if let Some(first) = is_reached.first_mut() {
        *first = true;
    }
    for at in 0..steps.len() {
        if is_reached[at] {
            for to in steps[at].next.into_iter().flatten() {
                is_reached[to] = true;
            }
        }
    }
    let mut place = 0;
    let places: Vec<usize> = is_reached
        .iter()
        .map(|&reached| {
            place += usize::from(reached);
            place - usize::from(reached)
        })
        .collect();
    let kept = steps.iter().zip(&is_reached).filter(|(_, reached)| **reached);
    kept.map(|(step, _)| Step { next: step.next.map(|next| next.map(|to| places[to])), ..*step }).collect()
}

fn write(steps: &[Step]) -> Option<Vec<sock_filter>> {
    let step = |(at, step): (usize, &Step)| {
        let plain = sock_filter { code: step.code, jt: 0, jf: 0, k: step.k };
        let Some([yes, no]) = step.next else { return Some(plain) };
        let distance = |to: usize| to.checked_sub(at + 1);
        if u32::from(step.code) == ALWAYS {
            return Some(sock_filter { k: u32::try_from(distance(yes)?).ok()?, ..plain });
        }
        if step.is_comparison() {
            let (jt, jf) = (u8::try_from(distance(yes)?).ok()?, u8::try_from(distance(no)?).ok()?);
            return Some(sock_filter { jt, jf, ..plain });
        }
        (yes == at + 1).then_some(plain)
    };
    steps.iter().enumerate().map(step).collect()
}
