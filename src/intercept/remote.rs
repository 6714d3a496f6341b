//! The memory of a process that waits for an answer: strings and lists of strings, copied once.
//!
//! Whole pages are fetched, many with one call, and kept for the one notification: argv and environment of a typical
//! program lie in a handful of them. The buffers live as long as the supervisor, so a notification allocates little.

use std::collections::HashMap;
use std::io;

use crate::sys::memory;

const PAGE: usize = 4096;
/// Pages of one notification: 16 MiB, more than the kernel takes for arguments and environment together.
const MOST_PAGES: usize = 4096;

/// A window into a process's memory.
#[derive(Debug, Default)]
pub(super) struct Remote {
    pid: i32,
    /// Where pages are in `bytes`, by their addresses; `None` where they could not be read.
    pages: HashMap<u64, Option<usize>>,
    bytes: Vec<u8>,
}

/// The memory is not there, or there is more than is looked at.
fn unreadable() -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

impl Remote {
    /// Turns to another process.
    pub(super) fn attach(&mut self, pid: i32) {
        self.pid = pid;
        self.pages.clear();
        self.bytes.clear();
    }

    fn page(&self, address: u64) -> Option<Option<usize>> {
        let page = address & !(PAGE as u64 - 1);
        self.pages.get(&page).copied()
    }

    /// Fetches the pages of these addresses that are not here yet.
    fn fetch(&mut self, addresses: impl Iterator<Item = u64>) -> io::Result<()> {
        let mut wanted: Vec<u64> = Vec::new();
        for address in addresses {
            let page = address & !(PAGE as u64 - 1);
            if self.page(page).is_none() {
                wanted.push(page);
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        // Every pointer may lead to a page of its own: what is looked at is bounded, whatever the words say.
        if self.pages.len() + wanted.len() > MOST_PAGES {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let mut rest = wanted.as_slice();
        while !rest.is_empty() {
            let batch = &rest[..rest.len().min(memory::MOST_PLACES)];
            let places: Vec<(u64, usize)> = batch.iter().map(|&page| (page, PAGE)).collect();
            let start = self.bytes.len();
            self.bytes.resize(start + batch.len() * PAGE, 0);
            let got = match memory::read(self.pid, &places, &mut self.bytes[start..]) {
                Ok(got) => got / PAGE,
                // The first page is not mapped.
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => 0,
                Err(error) => {
                    self.bytes.truncate(start);
                    return Err(error);
                }
            };
            self.bytes.truncate(start + got * PAGE);
            self.pages.extend(
                batch[..got].iter().enumerate().map(|(index, &page)| (page, Some(start + index * PAGE))),
            );
            let mut done = got;
            if got < batch.len() {
                self.pages.insert(batch[got], None);
                done += 1;
            }
            rest = &rest[done..];
        }
        Ok(())
    }

    /// Bytes from an address to the end of its page.
    fn tail(&mut self, address: u64) -> io::Result<&[u8]> {
        if self.page(address).is_none() {
            self.fetch(std::iter::once(address))?;
        }
        let at = self.page(address).flatten().ok_or_else(unreadable)?;
        let offset = (address & (PAGE as u64 - 1)) as usize;
        Ok(&self.bytes[at + offset..at + PAGE])
    }

    /// Exactly so many bytes.
    pub(super) fn bytes(&mut self, address: u64, length: usize) -> io::Result<Vec<u8>> {
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

    /// A string that ends with NUL, of at most `most` bytes.
    pub(super) fn string(&mut self, address: u64, most: usize) -> io::Result<Vec<u8>> {
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

    /// The pointers of an array that ends with a null pointer.
    pub(super) fn pointers(&mut self, address: u64, most: usize) -> io::Result<Vec<u64>> {
        let mut pointers = Vec::new();
        // The kernel takes a null array for an empty one.
        if address == 0 {
            return Ok(pointers);
        }
        let mut address = address;
        loop {
            let raw = self.bytes(address, 8)?;
            let pointer = u64::from_ne_bytes(raw.try_into().map_err(|_| unreadable())?);
            if pointer == 0 {
                break;
            }
            // The kernel counts the pointers as well.
            if pointers.len() >= most / 8 {
                return Err(io::Error::from_raw_os_error(libc::E2BIG));
            }
            pointers.push(pointer);
            address = address.checked_add(8).ok_or_else(unreadable)?;
        }
        self.fetch(pointers.iter().copied())?;
        Ok(pointers)
    }

    /// The strings of such an array, of at most `most` bytes together.
    pub(super) fn strings(&mut self, address: u64, most: usize) -> io::Result<Vec<Vec<u8>>> {
        let pointers = self.pointers(address, most)?;
        let mut left = most;
        let mut strings = Vec::with_capacity(pointers.len());
        for pointer in pointers {
            let text = self.string(pointer, left)?;
            left = left.saturating_sub(text.len() + 1);
            strings.push(text);
        }
        Ok(strings)
    }

    /// The variables of an environment that `keep` wants.
    pub(super) fn variables(
        &mut self,
        address: u64,
        most: usize,
        keep: impl Fn(&[u8]) -> bool,
    ) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut kept = Vec::new();
        for pointer in self.pointers(address, most)? {
            // Most variables are of no interest: their names are looked at where they lie.
            let tail = self.tail(pointer)?;
            let end = tail.iter().position(|&byte| byte == 0 || byte == b'=');
            if end.is_some_and(|end| !keep(&tail[..end])) {
                continue;
            }
            let text = self.string(pointer, most)?;
            if let Some(at) = text.iter().position(|&byte| byte == b'=')
                && keep(&text[..at])
            {
                kept.push((text[..at].to_vec(), text[at + 1..].to_vec()));
            }
        }
        Ok(kept)
    }
}
