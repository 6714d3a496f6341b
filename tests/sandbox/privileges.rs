//! No rights are left inside, and none can be had: capabilities, set-user-ID programs, set-user-ID files.

use std::os::unix::fs::{MetadataExt, chown};

use super::{Boundary, Place, Report, User, configurations, python, set_mode, tools};
use crate::support::copy_program;

#[test]
fn no_capability_is_left() {
    let Some(python) = python() else { return };
    for configuration in configurations() {
        let place = Place::new(configuration.user);
        let mut command = place.guard(configuration, &[]);
        command.arg(python).arg(tools().join("kernel.py")).arg("status");
        let report = Report::of(&command.output().unwrap());
        let status = report.value();
        let none = "0000000000000000";
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(status[set], none, "{configuration:?}: {report:?}");
        }
        // An ordinary user without a namespace cannot change the bounding set, and with no_new_privs has no use for it.
        if configuration.user == User::Root || configuration.namespaces {
            assert_eq!(status["CapBnd"], none, "{configuration:?}: {report:?}");
        }
        assert_eq!(
            (&status["NoNewPrivs"], &status["Seccomp"]),
            (&"1".into(), &"2".into()),
            "{configuration:?}"
        );
    }
}

/// A copy of the interpreter that belongs to root and is set-user-ID.
#[test]
fn a_set_user_id_program_gives_nothing() {
    if super::own_id() != 0 {
        return super::skip("set-user-ID programs", "only root can make one");
    }
    let setup = |place: &Place| {
        let real = std::fs::canonicalize(python().unwrap()).unwrap();
        let path = place.outside.join("program");
        copy_program(&real, &path);
        chown(&path, Some(0), Some(0)).unwrap();
        set_mode(&path, 0o6755);
    };
    if python().is_none() {
        return;
    }
    // (real, effective, saved): the last two change without guard.
    Boundary::new("kernel.py", &["become-root", "{outside}/program"]).only(User::Ordinary).check(
        setup,
        |_, (), report| {
            let said = report.value().as_str().unwrap_or_default().to_string();
            assert!(said.starts_with('('), "the program did not run: {report:?}");
            said.contains(", 0")
        },
    );
}

#[test]
fn no_set_user_id_file_is_made() {
    let made = |place: &Place, (): &mut (), _: &Report| {
        std::fs::metadata(place.work.join("made")).is_ok_and(|found| found.mode() & 0o4000 != 0)
    };
    for how in ["chmod", "fchmod", "fchmodat", "fchmodat2", "open", "creat", "mknod", "tmpfile", "openat2"] {
        Boundary::new("kernel.py", &["set-user-id", how]).check(|_| (), made);
    }
}
