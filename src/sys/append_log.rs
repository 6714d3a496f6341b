//! Files of lines to which guard only appends.
//!
//! [`append`] returns when the line is on disk. A process that is killed while it appends leaves an incomplete last
//! line, which [`read`] ignores and [`cut_torn_line`] removes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// How many processes append to a log at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writers {
    One,
    Several,
}

/// Why a line was not appended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendError {
    /// The file has reached its maximum size.
    #[error("the file has reached its maximum size")]
    Full,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Opens a log for appending. Creates the file if it does not exist.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Appends a line, given without its newline, with a single write, so that lines of several processes never mix. Returns when
/// the line is on disk. Fails if the file would become larger than `largest`. After an error, a log with one writer has
/// its previous content; to restore it while others append could remove their lines.
pub(crate) fn append(
    mut file: &File,
    mut line: Vec<u8>,
    largest: u64,
    writers: Writers,
) -> Result<(), AppendError> {
    line.push(b'\n');
    let length = file.metadata()?.len();
    if length.saturating_add(line.len() as u64) > largest {
        return Err(AppendError::Full);
    }
    let written = file.write_all(&line).and_then(|()| file.sync_data());
    if written.is_err() && writers == Writers::One {
        let _ = file.set_len(length);
    }
    Ok(written?)
}

/// Reads the complete lines after `position`, at most `most` bytes. A file that does not exist has no lines.
pub(crate) fn read(path: &Path, position: u64, most: u64) -> io::Result<Vec<u8>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    file.seek(SeekFrom::Start(position))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    bytes.truncate(complete_lines(&bytes));
    Ok(bytes)
}

/// Returns the total length of the complete lines.
pub(crate) fn complete_lines(bytes: &[u8]) -> usize {
    memchr::memrchr(b'\n', bytes).map_or(0, |end| end + 1)
}

/// Removes an incomplete last line, so that the next line does not continue it.
pub(crate) fn cut_torn_line(path: &Path) -> io::Result<()> {
    let mut file = match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    if ends_with_newline(&mut file)? {
        return Ok(());
    }
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    file.set_len(complete_lines(&bytes) as u64)?;
    file.sync_data()
}

fn ends_with_newline(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_cut_at_any_byte_keeps_its_complete_lines_and_can_be_continued() -> io::Result<()> {
        let path = std::env::temp_dir().join(format!("guard-append-log-{}", std::process::id()));
        let append_to = |value: &str, largest| append(&open(&path)?, value.into(), largest, Writers::One);
        let whole = b"one, two\nthree\n";
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut])?;
            let kept = read(&path, 0, u64::MAX)?;
            assert_eq!(kept, whole[..complete_lines(&whole[..cut])]);
            cut_torn_line(&path)?;
            assert_eq!(std::fs::read(&path)?, kept);
            append_to("four", u64::MAX).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(read(&path, kept.len() as u64, 100)?, b"four\n");
        }
        let length = path.metadata()?.len();
        assert!(matches!(append_to("five", length + 4), Err(AppendError::Full)));
        assert_eq!(path.metadata()?.len(), length);
        assert_eq!(read(&path, 0, 12)?, b"one, two\n");
        std::fs::remove_file(&path)?;
        cut_torn_line(&path)?;
        assert_eq!(read(&path, 0, u64::MAX)?, b"");
        Ok(())
    }
}
