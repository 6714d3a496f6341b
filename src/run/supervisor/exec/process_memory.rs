//! Reads strings and string arrays from the memory of a process that is blocked until the supervisor replies.
//!
//! The module fetches whole pages, many per system call, and caches them for one notification: the argv and environment
//! of a typical program fit in a few pages. It copies every page only once, so a later change by the process has no
//! effect. The buffers live as long as the supervisor, so a notification allocates little. Every length has a limit,
//! because the pointers come from the agent.

use std::io;

use crate::sys::memory;

const PAGE: usize = 4096;
const POINTER: u64 = size_of::<u64>() as u64;
/// The maximum number of pages that the supervisor reads for one notification: 16 MiB, more than the kernel accepts for
/// arguments and environment together.
const MOST_PAGES: usize = 4096;

/// The maximum size of the environment, in bytes. The supervisor refuses an exec with a larger one. The kernel's own
/// limit is about the same.
const LONGEST_ENVIRONMENT: usize = 8 << 20;

/// The maximum size of the argv of a started program, in bytes. The kernel accepts no more.
const LONGEST_ARGV: usize = 8 << 20;

/// The argv and environment of a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) argv: Vec<Vec<u8>>,
    /// The environment variables that can affect a verdict, without all others.
    pub(crate) environment: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Cached pages of a process's memory.
#[derive(Debug, Default)]
pub(crate) struct ProcessMemory {
    pid: i32,
    /// Addresses of the cached pages, sorted, with the offset of their content in `bytes`; `None` if the page could not
    /// be read.
    pages: Vec<(u64, Option<usize>)>,
    bytes: Vec<u8>,
    /// Scratch buffer: addresses of the pages to fetch next.
    wanted: Vec<u64>,
}

/// Returns the error for memory that is not mapped, or for an address that overflowed.
fn unreadable() -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

impl ProcessMemory {
    /// Selects the process to read from and drops all cached pages.
    pub(crate) fn attach(&mut self, pid: i32) {
        self.pid = pid;
        self.pages.clear();
        self.bytes.clear();
    }

    fn page(&self, address: u64) -> Option<Option<usize>> {
        let page = address & !(PAGE as u64 - 1);
        let at = self.pages.binary_search_by_key(&page, |(known, _)| *known).ok()?;
        Some(self.pages[at].1)
    }

    /// Reads the pages that contain these addresses into the cache, unless they are already there, in as few system
    /// calls as possible. Fails if the cache would have more than [`MOST_PAGES`] pages. An unmapped page causes an
    /// error only when it is used.
    pub(crate) fn fetch(&mut self, addresses: impl Iterator<Item = u64>) -> io::Result<()> {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.clear();
        wanted.extend(addresses.map(|address| address & !(PAGE as u64 - 1)));
        wanted.sort_unstable();
        wanted.dedup();
        wanted.retain(|&page| self.page(page).is_none());
        let fetched = self.fetch_pages(&wanted);
        self.wanted = wanted;
        fetched
    }

    fn fetch_pages(&mut self, wanted: &[u64]) -> io::Result<()> {
        // Every pointer may lead to a different page, so limit the total number of pages.
        if self.pages.len() + wanted.len() > MOST_PAGES {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let mut rest = wanted;
        while !rest.is_empty() {
            let batch = &rest[..rest.len().min(memory::MAX_RANGES)];
            let start = self.bytes.len();
            self.bytes.resize(start + batch.len() * PAGE, 0);
            let ranges = batch.iter().map(|&page| (page, PAGE));
            let got = match memory::read(self.pid, ranges, &mut self.bytes[start..]) {
                Ok(got) => got / PAGE,
                // The first page of the batch is not mapped.
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => 0,
                Err(error) => {
                    self.bytes.truncate(start);
                    return Err(error);
                }
            };
            self.bytes.truncate(start + got * PAGE);
            let there = batch[..got].iter().enumerate();
            self.pages.extend(there.map(|(index, &page)| (page, Some(start + index * PAGE))));
            self.pages.extend(batch.get(got).map(|&page| (page, None)));
            self.pages.sort_unstable();
            rest = &rest[(got + 1).min(batch.len())..];
        }
        Ok(())
    }

    /// Returns the bytes from an address to the end of its page. Fails if the page is not mapped.
    fn tail(&mut self, address: u64) -> io::Result<&[u8]> {
        if self.page(address).is_none() {
            self.fetch(std::iter::once(address))?;
        }
        let at = self.page(address).flatten().ok_or_else(unreadable)?;
        let offset = (address & (PAGE as u64 - 1)) as usize;
        Ok(&self.bytes[at + offset..at + PAGE])
    }

    /// Reads exactly `length` bytes at an address.
    pub(crate) fn bytes(&mut self, address: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(length.min(1 << 16));
        let mut address = address;
        while bytes.len() < length {
            let missing = length - bytes.len();
            let tail = self.tail(address)?;
            let taken = tail.len().min(missing);
            bytes.extend_from_slice(&tail[..taken]);
            address = address.checked_add(taken as u64).ok_or_else(unreadable)?;
        }
        Ok(bytes)
    }

    /// Reads a NUL-terminated string. Fails if it has more than `most` bytes before the NUL.
    pub(crate) fn string(&mut self, address: u64, most: usize) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        let mut address = address;
        loop {
            let tail = self.tail(address)?;
            match tail.iter().position(|&byte| byte == 0) {
                Some(end) if text.len() + end <= most => {
                    text.extend_from_slice(&tail[..end]);
                    return Ok(text);
                }
                None if text.len() + tail.len() <= most => text.extend_from_slice(tail),
                _ => return Err(io::Error::from_raw_os_error(libc::E2BIG)),
            }
            let passed = tail.len() as u64;
            address = address.checked_add(passed).ok_or_else(unreadable)?;
        }
    }

    /// Reads a native-endian 64-bit number.
    pub(crate) fn number(&mut self, address: u64) -> io::Result<u64> {
        let tail = self.tail(address)?;
        if let Some(raw) = tail.first_chunk() {
            return Ok(u64::from_ne_bytes(*raw));
        }
        // The number crosses a page boundary.
        let raw = self.bytes(address, POINTER as usize)?;
        raw.try_into().map(u64::from_ne_bytes).map_err(|_| unreadable())
    }

    /// Reads an array of pointers up to its null terminator. Fails if the pointers take more than `most` bytes. A null
    /// address is an empty array.
    fn pointers(&mut self, address: u64, most: usize) -> io::Result<Vec<u64>> {
        let mut pointers = Vec::new();
        // The kernel treats a null array as an empty one.
        if address == 0 {
            return Ok(pointers);
        }
        let mut address = address;
        loop {
            let pointer = self.number(address)?;
            if pointer == 0 {
                return Ok(pointers);
            }
            // The kernel counts the pointers against the limit too.
            if pointers.len() >= most / POINTER as usize {
                return Err(io::Error::from_raw_os_error(libc::E2BIG));
            }
            pointers.push(pointer);
            address = address.checked_add(POINTER).ok_or_else(unreadable)?;
        }
    }

    /// Reads the argv and environment of an exec from their pointer arrays. Fails if all arguments together have more
    /// than `most` bytes. Returns only the variables whose name `keep` accepts.
    pub(crate) fn arguments(
        &mut self,
        argv: u64,
        environment: u64,
        most: usize,
        keep: impl Fn(&[u8]) -> bool,
    ) -> io::Result<Arguments> {
        let argv = self.pointers(argv, most)?;
        let environment = self.pointers(environment, LONGEST_ENVIRONMENT)?;
        self.fetch(argv.iter().chain(&environment).copied())?;
        Ok(Arguments { argv: self.strings(&argv, most)?, environment: self.variables(&environment, keep)? })
    }

    /// Reads the argv and environment of a program at its exec stop. They are on the initial stack, which the kernel
    /// has built and whose address is `stack`. Returns only the variables whose name `keep` accepts.
    pub(crate) fn started_with(&mut self, stack: u64, keep: impl Fn(&[u8]) -> bool) -> io::Result<Arguments> {
        /// The number of stack pages to fetch at once; enough for most programs.
        const USUAL_PAGES: u64 = 3;
        self.fetch((0..USUAL_PAGES).map(|page| stack.saturating_add(page * PAGE as u64)))?;
        let count = self.number(stack)?;
        let after = |words: u64| {
            words.checked_mul(POINTER).and_then(|bytes| stack.checked_add(bytes)).ok_or_else(unreadable)
        };
        // The stack holds argc, argv, a null pointer, then the environment.
        let arguments = self.arguments(
            after(1)?,
            after(count.checked_add(2).ok_or_else(unreadable)?)?,
            LONGEST_ARGV,
            keep,
        )?;
        // The reader stops at a null pointer inside argv, but the program itself would read on.
        if arguments.argv.len() as u64 == count { Ok(arguments) } else { Err(unreadable()) }
    }

    /// Reads the strings at these pointers. Fails if a string does not fit in what the strings before it, each with a
    /// NUL, leave of `most` bytes; an empty string always fits.
    fn strings(&mut self, pointers: &[u64], most: usize) -> io::Result<Vec<Vec<u8>>> {
        let mut left = most;
        let mut strings = Vec::with_capacity(pointers.len());
        for &pointer in pointers {
            let text = self.string(pointer, left)?;
            left = left.saturating_sub(text.len() + 1);
            strings.push(text);
        }
        Ok(strings)
    }

    fn variables(
        &mut self,
        pointers: &[u64],
        keep: impl Fn(&[u8]) -> bool,
    ) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut kept = Vec::new();
        // Many pointers can lead to the same long string, so the limit is for all variables together.
        let mut left = LONGEST_ENVIRONMENT;
        for &pointer in pointers {
            // Most variables are irrelevant: check the name in place before copying.
            let tail = self.tail(pointer)?;
            let end = tail.iter().position(|&byte| byte == 0 || byte == b'=');
            if end.is_some_and(|end| !keep(&tail[..end])) {
                continue;
            }
            let text = self.string(pointer, left)?;
            left = left.saturating_sub(text.len() + 1);
            if let Some(at) = text.iter().position(|&byte| byte == b'=')
                && keep(&text[..at])
            {
                kept.push((text[..at].to_vec(), text[at + 1..].to_vec()));
            }
        }
        Ok(kept)
    }
}
