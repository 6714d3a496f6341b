//! Provides a small file system that a test can fill.

use std::path::PathBuf;
use std::process::Command;

use super::{is_root, run_tool, skip, skip_unsupported};

/// A mounted file system. Dropping the value unmounts it.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    pub(crate) fn new(at: PathBuf, size: &str) -> Option<Self> {
        if !is_root() {
            skip("a full disk", "only root can mount one");
            return None;
        }
        std::fs::create_dir_all(&at).unwrap();
        let size = format!("size={size},mode=755");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "guard-test"]).arg(&at).status();
        if !mounted.is_ok_and(|status| status.success()) {
            skip_unsupported("a full disk", "mounting is not allowed here");
            return None;
        }
        Some(Self(at))
    }

    /// Fills the file system, except for this many bytes.
    pub(crate) fn fill(&self, left: usize) {
        let mut size = 1 << 20;
        while size >= 4096 {
            let file = self.0.join(format!("filler-{size}"));
            let mut bytes = Vec::new();
            while std::fs::write(&file, vec![0u8; bytes.len() + size]).is_ok() {
                bytes.resize(bytes.len() + size, 0u8);
            }
            // Another process may use the space that a smaller file leaves.
            while std::fs::write(&file, &bytes).is_err() && !bytes.is_empty() {
                bytes.truncate(bytes.len() - size);
            }
            size /= 16;
        }
        if left > 0 {
            let file = self.0.join("filler-1048576");
            let length = std::fs::metadata(&file).unwrap().len();
            std::fs::OpenOptions::new()
                .write(true)
                .open(&file)
                .unwrap()
                .set_len(length.saturating_sub(left as u64))
                .unwrap();
        }
    }

    pub(crate) fn free(&self) {
        for entry in std::fs::read_dir(&self.0).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("filler-") {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run_tool("umount", &["-l".as_ref(), self.0.as_ref()]);
    }
}
