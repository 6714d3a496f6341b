// slow
//! guard prints text that an agent chose. It must escape every character that is invisible or changes how the text is
//! displayed.

use crate::support::in_every_environment;

/// Ranges of invisible characters and of characters that change how text is displayed, from the Unicode Character
/// Database: `Default_Ignorable_Code_Point`, `Bidi_Control`, line and paragraph separators, interlinear annotations,
/// and control characters.
const HIDDEN: [(u32, u32); 25] = [
    (0x01, 0x08),
    (0x0b, 0x0c),
    (0x0e, 0x1f),
    (0x7f, 0x9f),
    (0xad, 0xad),
    (0x34f, 0x34f),
    (0x61c, 0x61c),
    (0x115f, 0x1160),
    (0x17b4, 0x17b5),
    (0x180b, 0x180f),
    (0x200b, 0x200f),
    (0x2028, 0x202e),
    (0x2060, 0x206f),
    (0x3164, 0x3164),
    (0xfe00, 0xfe0f),
    (0xfeff, 0xfeff),
    (0xffa0, 0xffa0),
    (0xfff0, 0xfffb),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0000, 0xe0001),
    (0xe0020, 0xe007f),
    (0xe0100, 0xe01ef),
    (0xfffe, 0xffff),
    (0x10ffff, 0x10ffff),
];

#[test]
fn invisible_characters_are_escaped_in_log_and_summary() {
    let hidden: String =
        HIDDEN.iter().flat_map(|&(from, to)| (from..=to).filter_map(char::from_u32)).collect();
    assert!(hidden.chars().count() > 350);
    in_every_environment(|environment| {
        let name = environment.name();
        std::fs::write(environment.directory.join("hidden.txt"), &hidden).unwrap();
        let script = "import subprocess\nhidden = open('hidden.txt', newline='').read()\n\
             print('said' + hidden + 'said')\n\
             for argv in (['/usr/bin/true', 'started' + hidden], ['/usr/bin/git', 'checkout', 'refused' + hidden[:90]]):\n    \
             try:\n        subprocess.run(argv, stderr=subprocess.DEVNULL)\n    except PermissionError:\n        pass\n\
             for name in range(0, len(hidden), 40):\n    \
             open('made' + hidden[name:name + 40].replace('/', ''), 'w').close()\n";
        std::fs::write(environment.directory.join("hidden.py"), script).unwrap();
        environment.give_to_user(&environment.directory);
        let outcome = environment.run_to_end(environment.guard_run(&[], &["python3", "hidden.py"]), b"");
        let mut command = environment.command(crate::support::guard_program());
        let log = command.args(["log"]).output().unwrap();
        let log = String::from_utf8(log.stdout).unwrap();
        for wanted in ["said", "started", "refused"] {
            assert!(log.contains(wanted), "{name}: {log}");
        }
        assert!(outcome.error.contains("refused") && outcome.error.contains("made"), "{name}: {outcome}");
        for (what, text) in [("the log", &log), ("the summary", &outcome.error)] {
            let found: Vec<String> = text
                .chars()
                .filter(|one| hidden.contains(*one))
                .map(|one| format!("{:x}", one as u32))
                .collect();
            assert!(found.is_empty(), "{name}: {what}: {found:?}");
        }
    });
}
