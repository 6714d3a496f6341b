//! What the first process and the agent are told once there is a plan: they begin while it is still being made, because what
//! they do before takes as long, and there is a second processor.
//!
//! The orders lie in memory that guard and they share, as bytes: numbers are four bytes, texts and lists begin with how long
//! they are. A byte on the `setup` socket says that they are there, and that the run's folders are.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::plan::LaunchPlan;
use super::protocol::StartError;
use crate::sandbox::{Grant, Layer, Rights, View};

/// On `setup`, from guard: the orders are there, and so are the run's directories.
const ORDERS: u8 = b'O';

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Orders {
    /// The file to execute.
    pub(super) program: PathBuf,
    /// Its arguments, beginning with its name.
    pub(super) argv: Vec<OsString>,
    /// The whole environment.
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Every path with its rights.
    pub(super) grants: Vec<Grant>,
    /// What the run sees, in namespaces of its own.
    pub(super) view: View,
}

impl Orders {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let text = |reader: &mut Reader<'_>| reader.text().map(|bytes| OsString::from_vec(bytes.to_vec()));
        let path = Reader::path;
        let pair = |reader: &mut Reader<'_>| Some((reader.path()?, reader.path()?));
        let grant = |reader: &mut Reader<'_>| {
            let number = reader.number()?;
            let rights = Rights::ALL.into_iter().find(|rights| *rights as usize == number)?;
            Some(Grant { path: reader.path()?, rights, why: String::new() })
        };
        let layer = |reader: &mut Reader<'_>| {
            Some(Layer {
                lower: reader.path()?,
                upper: reader.path()?,
                work: reader.path()?,
                at: reader.path()?,
            })
        };
        let program = reader.path()?;
        let argv = reader.list(text)?;
        let environment = reader.list(|reader| Some((text(reader)?, text(reader)?)))?;
        let grants = reader.list(grant)?;
        let (writable, visible) = (reader.list(path)?, reader.list(path)?);
        let (hidden, memory) = (reader.list(path)?, reader.list(path)?);
        let (private, pointers) = (reader.list(pair)?, reader.list(pair)?);
        let layers = reader.list(layer)?;
        let view = View { writable, visible, hidden, private, memory, layers, pointers };
        reader.0.is_empty().then_some(Self { program, argv, environment, grants, view })
    }
}

/// A plan as orders. It must be settled.
fn encode(plan: &LaunchPlan) -> Vec<u8> {
    encode_parts((&plan.program, &plan.argv, &plan.environment), &plan.grants, &plan.view)
}

/// A command: (program, arguments, environment).
type Command<'c> = (&'c Path, &'c [OsString], &'c [(OsString, OsString)]);

fn encode_parts((program, argv, environment): Command<'_>, grants: &[Grant], view: &View) -> Vec<u8> {
    let mut page = Page(Vec::with_capacity(16 << 10));
    page.path(program);
    page.list(argv, |page, word| page.text(word.as_bytes()));
    page.list(environment, |page, (name, value)| {
        page.text(name.as_bytes());
        page.text(value.as_bytes());
    });
    page.list(grants, |page, grant| {
        page.number(grant.rights as usize);
        page.path(&grant.path);
    });
    for paths in [&view.writable, &view.visible, &view.hidden, &view.memory] {
        page.list(paths, |page, path| page.path(path));
    }
    for pairs in [&view.private, &view.pointers] {
        page.list(pairs, |page, (from, at)| {
            page.path(from);
            page.path(at);
        });
    }
    page.list(&view.layers, |page, layer| {
        [&layer.lower, &layer.upper, &layer.work, &layer.at].into_iter().for_each(|path| page.path(path));
    });
    page.0
}

/// Where orders are laid down, and found by those who were started before.
#[derive(Debug)]
pub(super) struct Desk(File);

impl Desk {
    pub(super) fn make() -> io::Result<Self> {
        Ok(Self(File::from(memfd_create(c"orders", MFdFlags::MFD_CLOEXEC)?)))
    }

    /// Lays down what a plan, settled, comes to, and says so. Orders are given once.
    pub(super) fn give(&mut self, plan: &LaunchPlan, setup: &OwnedFd) -> io::Result<()> {
        self.0.write_all(&encode(plan))?;
        // Who is not there to hear it has said why, or is seen to be gone.
        let _ = nix::unistd::write(setup, &[ORDERS]);
        Ok(())
    }

    /// Waits for orders.
    pub(super) fn receive(&self, setup: &OwnedFd) -> Result<Orders, StartError> {
        let mut said = [0u8; 1];
        match nix::unistd::read(setup, &mut said) {
            Ok(1) if said[0] == ORDERS => {}
            Ok(_) => return Err(StartError::Other("guard closed the setup socket".to_string())),
            Err(error) => return Err(StartError::at("wait for orders")(error)),
        }
        let read = || {
            let mut bytes = vec![0; usize::try_from(self.0.metadata()?.len()).unwrap_or(0)];
            self.0.read_exact_at(&mut bytes, 0).map(|()| bytes)
        };
        let bytes = read().map_err(StartError::at("read orders"))?;
        Orders::decode(&bytes).ok_or_else(|| StartError::Other("malformed orders".to_string()))
    }
}

struct Page(Vec<u8>);

impl Page {
    fn number(&mut self, number: usize) {
        // Nothing that a kernel would take is longer.
        self.0.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
    }

    fn text(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    fn path(&mut self, path: &Path) {
        self.text(path.as_os_str().as_bytes());
    }

    fn list<T>(&mut self, items: &[T], put: impl Fn(&mut Self, &T)) {
        self.number(items.len());
        items.iter().for_each(|item| put(self, item));
    }
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn number(&mut self) -> Option<usize> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        usize::try_from(u32::from_le_bytes(*number)).ok()
    }

    fn text(&mut self) -> Option<&'b [u8]> {
        let length = self.number()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(text)
    }

    fn path(&mut self) -> Option<PathBuf> {
        self.text().map(|bytes| PathBuf::from(OsString::from_vec(bytes.to_vec())))
    }

    fn list<T>(&mut self, get: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let length = self.number()?;
        // However long it says it is: each takes at least a number.
        (length <= self.0.len() / size_of::<u32>()).then_some(())?;
        (0..length).map(|_| get(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Orders {
        fn encode(&self) -> Vec<u8> {
            encode_parts((&self.program, &self.argv, &self.environment), &self.grants, &self.view)
        }
    }

    fn orders() -> impl Strategy<Value = Orders> {
        let text = || prop::collection::vec(any::<u8>(), 0..9).prop_map(OsString::from_vec);
        let path = move || text().prop_map(PathBuf::from);
        let paths = move || prop::collection::vec(path(), 0..4);
        let pairs = move || prop::collection::vec((path(), path()), 0..3);
        let rights = prop::sample::select(Rights::ALL.to_vec());
        let grant = (path(), rights).prop_map(|(path, rights)| Grant { path, rights, why: String::new() });
        let layer = (path(), path(), path(), path());
        let layer = layer.prop_map(|(lower, upper, work, at)| Layer { lower, upper, work, at });
        let trees =
            (paths(), paths(), paths(), paths(), pairs(), pairs(), prop::collection::vec(layer, 0..3));
        let view = trees.prop_map(|(writable, visible, hidden, memory, private, pointers, layers)| View {
            writable,
            visible,
            hidden,
            private,
            memory,
            layers,
            pointers,
        });
        let words = prop::collection::vec(text(), 0..4);
        let environment = prop::collection::vec((text(), text()), 0..4);
        (path(), words, environment, prop::collection::vec(grant, 0..5), view).prop_map(
            |(program, argv, environment, grants, view)| Orders { program, argv, environment, grants, view },
        )
    }

    proptest! {
        #[test]
        fn what_is_told_is_understood(orders in orders()) {
            prop_assert_eq!(Orders::decode(&orders.encode()), Some(orders));
        }

        #[test]
        fn what_is_cut_short_or_longer_is_refused(orders in orders(), at in any::<prop::sample::Index>()) {
            let mut bytes = orders.encode();
            prop_assert_eq!(Orders::decode(&bytes[..at.index(bytes.len())]), None);
            bytes.push(0);
            prop_assert_eq!(Orders::decode(&bytes), None);
        }

        #[test]
        fn any_bytes_are_orders_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(orders) = Orders::decode(&bytes) {
                prop_assert_eq!(orders.encode(), bytes);
            }
        }
    }
}
