//! Parses any bytes as a ref file or as `packed-refs` of a private repository. The parser must return a full object id
//! or an error.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use guard::git::fuzzing::{branch, changed_refs};
use libfuzzer_sys::fuzz_target;

static GIT_DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = PathBuf::from(format!("/dev/shm/guard-fuzz-refs-{}", std::process::id()));
    std::fs::create_dir_all(path.join("refs/heads")).expect("a directory in memory");
    path
});

// The first byte selects the file and the object format.
fuzz_target!(|bytes: &[u8]| {
    let [how, text @ ..] = bytes else { return };
    let format = if how & 2 == 0 { "sha1" } else { "sha256" };
    let (loose, packed) = (GIT_DIR.join("refs/heads/task"), GIT_DIR.join("packed-refs"));
    let (written, other) = if how & 1 == 0 { (&loose, &packed) } else { (&packed, &loose) };
    let _ = std::fs::remove_file(other);
    std::fs::write(written, text).expect("a file in memory");
    if let Some(id) = branch(&GIT_DIR, "refs/heads/task", format) {
        assert_eq!(id.len(), if format == "sha1" { 40 } else { 64 });
        assert!(id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
    if let Some(count) = changed_refs(&GIT_DIR, "refs/heads/task", format) {
        assert!(count <= text.len());
    }
});
