//! Reads refs that are stored in reftables: a stack of small binary tables, of which the last is the newest.
//!
//! The format is described in git's `Documentation/technical/reftable.txt`. guard reads only the blocks with refs. It
//! skips the blocks with reflogs, because they are compressed, and every compaction rewrites all of them.

use std::collections::BTreeMap;
use std::io;

use super::refs::{Found, Ref, Value, join};
use super::state::{OpenDirectory, hash, read_whole};
use super::{Name, Scan};
use crate::text::hex;

/// Maximum size of one table, in bytes.
const MAX_TABLE_BYTES: u64 = 512 << 20;
/// Maximum number of attempts to read all tables: another git process may replace tables while guard reads them.
const MAX_ATTEMPTS: usize = 10;

/// Reads the refs in the stack of tables in the directory `path`, which is relative to `common`; `None` if there is no
/// stack. If guard cannot read the stack completely, returns no refs and the hash of a fixed text.
pub(crate) fn stack(common: &OpenDirectory, path: &[u8], scan: &mut Scan<'_>) -> io::Result<Option<Found>> {
    for _ in 0..MAX_ATTEMPTS {
        let Some(dir) = common.open_below(path)? else { return Ok(None) };
        let Some((mut list, stat)) = dir.file(c"tables.list", true)? else { return Ok(None) };
        let Some(list) = read_whole(&mut list, stat.size, 1 << 20)? else {
            scan.cut = true;
            break;
        };
        if let Some(read) = tables(&dir, &list, scan)? {
            return Ok(Some(read));
        }
    }
    // A table that stays missing means that the repository is broken. Record that, so that a comparison shows a
    // change.
    Ok(Some((Vec::new(), Some(hash(b"a table is missing")))))
}

fn tables(dir: &OpenDirectory, list: &[u8], scan: &mut Scan<'_>) -> io::Result<Option<Found>> {
    let mut refs = BTreeMap::new();
    let mut unparsable = None;
    for name in list.split(|byte| *byte == b'\n').filter(|name| !name.is_empty()) {
        let Ok(name) = std::ffi::CString::new(name) else { continue };
        let Some((mut file, stat)) = dir.file(&name, true)? else { return Ok(None) };
        let Some(table) = read_whole(&mut file, stat.size, MAX_TABLE_BYTES)? else {
            scan.cut = true;
            continue;
        };
        if refs_in(&table, &mut refs).is_none() {
            unparsable = Some(hash(&join(table.as_slice(), &name)));
        }
    }
    let refs = refs.into_iter().filter_map(|(name, one)| Some((name, one?))).collect();
    Ok(Some((refs, unparsable)))
}

/// Adds the refs of a table to `refs`, and overrides the refs of older tables. A deleted ref becomes `None`. Returns
/// `None` if the table is malformed; the refs before the fault are then in `refs`.
pub(crate) fn refs_in(table: &[u8], refs: &mut BTreeMap<Name, Option<Ref>>) -> Option<()> {
    let version = *table.get(4)?;
    if table.get(..4)? != b"REFT" || !matches!(version, 1 | 2) {
        return None;
    }
    let (header, footer) = if version == 1 { (24, 68) } else { (28, 72) };
    let size_of_object = if version == 2 && table.get(24..28)? == b"s256" { 32 } else { 20 };
    let block_size = number(table, 5, 3)?;
    let end = table.len().checked_sub(footer)?;
    let mut start = 0;
    while start < end {
        // The header of the file is part of the first block.
        let at = if start == 0 { header } else { start };
        if at >= end || *table.get(at)? != b'r' {
            break;
        }
        let length = number(table, at + 1, 3)?;
        let block = table.get(start..start.checked_add(length)?)?;
        records(block, at - start + 4, size_of_object, refs)?;
        // Blocks are either padded with zeros to the block size, or follow each other without a gap.
        let aligned = block_size > length && *table.get(start + length)? == 0;
        start += if aligned { block_size } else { length.max(1) };
    }
    Some(())
}

fn records(
    block: &[u8],
    first: usize,
    size_of_object: usize,
    refs: &mut BTreeMap<Name, Option<Ref>>,
) -> Option<()> {
    let restarts = number(block, block.len().checked_sub(2)?, 2)?;
    let end = block.len().checked_sub(2)?.checked_sub(restarts.checked_mul(3)?)?;
    let mut at = first;
    let mut name: Vec<u8> = Vec::new();
    while at < end {
        let shared = varint(block, &mut at)?;
        let packed = varint(block, &mut at)?;
        let (suffix, kind) = (packed >> 3, packed & 7);
        name.truncate(shared);
        name.extend_from_slice(bytes(block, &mut at, suffix)?);
        let _update = varint(block, &mut at)?;
        let mut object = || bytes(block, &mut at, size_of_object).map(hex::encode);
        let found = match kind {
            0 => None,
            1 => Some((Value::Object(object()?), None)),
            2 => Some((Value::Object(object()?), Some(object()?))),
            3 => {
                let length = varint(block, &mut at)?;
                Some((Value::Symbolic(Name::from(bytes(block, &mut at, length)?)), None))
            }
            _ => return None,
        };
        refs.insert(Name::from(&name), found.map(|(value, peeled)| Ref { value, peeled, file: None }));
    }
    Some(())
}

fn bytes<'a>(block: &'a [u8], at: &mut usize, count: usize) -> Option<&'a [u8]> {
    let end = at.checked_add(count)?;
    let taken = block.get(*at..end)?;
    *at = end;
    Some(taken)
}

fn number(data: &[u8], at: usize, size: usize) -> Option<usize> {
    Some(data.get(at..at.checked_add(size)?)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
}

fn varint(block: &[u8], at: &mut usize) -> Option<usize> {
    let mut byte = *bytes(block, at, 1)?.first()?;
    let mut value = usize::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        byte = *bytes(block, at, 1)?.first()?;
        value = value.checked_add(1)?.checked_mul(128)? | usize::from(byte & 0x7f);
    }
    Some(value)
}
