//! The parsers that read a git index and the list of a snapshot accept any bytes, and read what git writes.

use guard::git::fuzzing::{index_entries, snapshot_items};
use proptest::prelude::*;

use crate::support::{Scratch, run_tool};

/// Returns the index of a new repository with these settings, and the number of its files.
fn index(scratch: &Scratch, name: &str, version: &str, files: usize) -> Vec<u8> {
    let repository = scratch.0.join(name);
    std::fs::create_dir_all(repository.join("directory/with/levels")).unwrap();
    for number in 0..files {
        let file = format!("directory/with/levels/{}{number}", "x".repeat(number % 20));
        std::fs::write(repository.join(file), number.to_string()).unwrap();
    }
    let script = format!(
        "cd {} && git init -q . && git config index.version {version} && git add . && git add -N . && git update-index --index-version {version}",
        repository.display()
    );
    run_tool("sh", &["-euc".as_ref(), script.as_ref()]);
    std::fs::read(repository.join(".git/index")).unwrap()
}

#[test]
fn git_index_of_every_version_is_read() {
    let scratch = Scratch::new("undo-index");
    for version in ["2", "3", "4"] {
        let bytes = index(&scratch, version, version, 50);
        assert_eq!(index_entries(&bytes), Some(50), "version {version}");
        for end in 0..bytes.len() - 20 {
            // A cut index must not be taken for one with fewer files.
            assert_ne!(index_entries(&bytes[..end]), Some(49), "version {version}, {end} bytes");
        }
    }
}

proptest! {
    #[test]
    fn index_parser_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400), version in 2u32..5, count in any::<u32>()) {
        let _ = index_entries(&bytes);
        let mut headed = b"DIRC".to_vec();
        headed.extend(version.to_be_bytes());
        headed.extend(count.to_be_bytes());
        headed.extend(&bytes);
        let _ = index_entries(&headed);
    }

    #[test]
    fn snapshot_list_parser_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400), count in any::<u64>()) {
        let _ = snapshot_items(&bytes);
        let _ = snapshot_items(&[&count.to_le_bytes()[..], &bytes].concat());
        // A length at the beginning of the first path that its end or the end of the address space exceeds.
        let _ = snapshot_items(&[&1u64.to_le_bytes()[..], &count.to_le_bytes(), &bytes].concat());
    }

    /// A damaged list must not lead guard out of the directory, and a cut one must not be taken for a shorter one.
    #[test]
    fn snapshot_list_with_unsafe_paths_is_refused(path in "(\\.\\./|/|\\./|a/\\.\\./|a//)[a-z]{0,3}", cut in 1usize..60) {
        prop_assert_eq!(snapshot_items(&list(path.as_bytes())), None);
        let plain = list(b"a/b");
        prop_assert_eq!(snapshot_items(&plain), Some(1));
        prop_assert_eq!(snapshot_items(&plain[..plain.len() - cut]), None);
    }
}

/// Returns a list with one path, an empty file.
fn list(path: &[u8]) -> Vec<u8> {
    let numbers = |count: usize, length: usize| vec![0u8; count * length];
    let lengths = [1u64.to_le_bytes(), (path.len() as u64).to_le_bytes()].concat();
    // Mode, owner and group; hard links, size, inode and two times; the kind of the content.
    [&lengths, path, &numbers(3, 4), &numbers(5, 8), &[0]].concat()
}
