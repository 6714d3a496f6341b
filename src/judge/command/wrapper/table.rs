//! Tables of wrappers with simple rules: which options take values, and how many operands precede the command.

use super::Kind;
use crate::judge::command::effects::Effects;

/// A wrapper of the form `NAME [options] [operands] command…`.
pub(crate) struct Plain {
    pub(super) name: &'static str,
    /// Short options that take a value.
    pub(super) short: &'static [u8],
    /// Long options whose value may be a separate argument.
    pub(super) long: &'static [&'static str],
    /// Short options with which the wrapper runs no command (`ionice -p PID`).
    pub(super) no_command: &'static [u8],
    /// The number of arguments between the options and the command.
    pub(super) operands: usize,
    /// Whether `VAR=value` arguments may precede the command.
    pub(super) assignments: bool,
    /// The effects of the wrapper itself, whatever it runs.
    pub(super) effects: Effects,
}

/// A subcommand of a tool that runs the command given after it (`uv run`).
pub(crate) struct Subcommand {
    pub(super) name: &'static str,
    pub(super) then: Plain,
}

const BASE: Plain = Plain {
    name: "",
    short: b"",
    long: &[],
    no_command: b"",
    operands: 0,
    assignments: false,
    effects: Effects::NONE,
};

const fn simple(name: &'static str) -> Plain {
    Plain { name, ..BASE }
}

/// All plain wrappers, sorted by name.
static PLAIN: &[Plain] = &[
    Plain { short: b"C", long: &["chdir"], assignments: true, ..simple("arch") },
    simple("builtin"),
    simple("caffeinate"),
    simple("catchsegv"),
    Plain { short: b"g", ..simple("cgexec") },
    Plain { short: b"n", long: &["adjust"], no_command: b"p", ..simple("choom") },
    Plain { short: b"bceglmnopuU", operands: 0, ..simple("chpst") },
    simple("chronic"),
    Plain {
        long: &["groups", "userspec", "skip-chdir"],
        operands: 1,
        effects: Effects::RUN_ELSEWHERE,
        ..simple("chroot")
    },
    Plain { short: b"TPD", no_command: b"pm", operands: 1, ..simple("chrt") },
    Plain { long: &["config-file", "dbus-daemon"], ..simple("dbus-run-session") },
    Plain { short: b"uCa", effects: Effects::RUN_ELSEWHERE, ..simple("doas") },
    simple("dumb-init"),
    simple("eatmydata"),
    simple("entr"),
    Plain { short: b"lsibu", ..simple("fakeroot") },
    Plain { short: b"lsibu", ..simple("fakeroot-sysv") },
    Plain { short: b"lsibu", ..simple("fakeroot-tcp") },
    Plain { short: b"f", operands: 1, ..simple("faketime") },
    Plain { effects: Effects::RUN_ELSEWHERE, operands: 1, ..simple("gosu") },
    simple("i386"),
    Plain { short: b"cnpPu", long: &["class", "classdata", "pid"], no_command: b"pPu", ..simple("ionice") },
    simple("jobs"),
    simple("linux32"),
    simple("linux64"),
    Plain { operands: 1, ..simple("logsave") },
    Plain { short: b"aADeFlnopsuwxX", ..simple("ltrace") },
    Plain { short: b"npdtxyo", ..simple("memusage") },
    Plain { short: b"n", long: &["adjustment"], ..simple("nice") },
    simple("nohup"),
    Plain {
        short: b"tSGW",
        long: &["target", "setuid", "setgid", "wdns"],
        effects: Effects::RUN_ELSEWHERE,
        ..simple("nsenter")
    },
    Plain {
        short: b"NCmipl",
        long: &["membind", "cpunodebind", "physcpubind", "interleave", "preferred", "localalloc"],
        ..simple("numactl")
    },
    Plain { effects: Effects::RUN_ELSEWHERE, long: &["user"], ..simple("pkexec") },
    Plain { short: b"po", long: &["pid", "output"], no_command: b"p", ..simple("prlimit") },
    simple("rlwrap"),
    Plain { short: b"chpSTtX", ..simple("screen") },
    Plain { long: &["ruid", "euid", "rgid", "egid", "reuid", "regid", "groups"], ..simple("setpriv") },
    simple("setsid"),
    Plain { short: b"FTo", ..simple("sotruss") },
    Plain { short: b"ioe", long: &["input", "output", "error"], ..simple("stdbuf") },
    Plain {
        short: b"abeEIoOpPsSuUX",
        long: &[
            "output",
            "attach",
            "env",
            "trace",
            "signal",
            "status",
            "abbrev",
            "raw",
            "read",
            "write",
            "columns",
            "string-limit",
            "user",
            "argv0",
            "inject",
            "fault",
        ],
        ..simple("strace")
    },
    Plain { effects: Effects::RUN_ELSEWHERE, operands: 1, ..simple("su-exec") },
    Plain { long: &["what", "who", "why", "mode"], ..simple("systemd-inhibit") },
    Plain {
        short: b"uptMHE",
        long: &[
            "unit",
            "property",
            "description",
            "slice",
            "uid",
            "gid",
            "working-directory",
            "setenv",
            "machine",
            "host",
        ],
        effects: Effects::RUN_ELSEWHERE,
        ..simple("systemd-run")
    },
    Plain { no_command: b"p", operands: 1, ..simple("taskset") },
    Plain { short: b"fo", long: &["format", "output"], ..simple("time") },
    Plain { short: b"ks", long: &["kill-after", "signal"], operands: 1, ..simple("timeout") },
    Plain { short: b"pe", ..simple("tini") },
    simple("torify"),
    Plain { short: b"", ..simple("torsocks") },
    simple("unbuffer"),
    Plain {
        short: b"SGRw",
        long: &["setuid", "setgid", "root", "wd", "propagation", "setgroups", "map-users", "map-groups"],
        effects: Effects::RUN_ELSEWHERE,
        ..simple("unshare")
    },
    simple("valgrind"),
    simple("x86_64"),
    Plain {
        short: b"efnpsw",
        long: &["error-file", "auth-file", "server-num", "xauth-protocol", "server-args", "wait"],
        ..simple("xvfb-run")
    },
];

const fn sub(name: &'static str, then: Plain) -> Subcommand {
    Subcommand { name, then }
}

static UV: &[Subcommand] = &[
    sub(
        "run",
        Plain {
            short: b"pm",
            long: &["with", "python", "extra", "group", "package", "project", "env-file", "module"],
            ..BASE
        },
    ),
    sub("x", BASE),
];
static RUN: &[Subcommand] = &[sub("run", BASE)];
static BUNDLE: &[Subcommand] = &[sub("exec", BASE)];
static RUSTUP: &[Subcommand] = &[sub("run", Plain { operands: 1, ..BASE })];
static CONDA: &[Subcommand] = &[sub("run", Plain { short: b"np", long: &["name", "prefix", "cwd"], ..BASE })];
static DIRENV: &[Subcommand] = &[sub("exec", Plain { operands: 1, ..BASE })];
static MISE: &[Subcommand] = &[sub("exec", BASE), sub("x", BASE)];
static PNPM: &[Subcommand] = &[sub("exec", BASE), sub("dlx", BASE)];
static PERF: &[Subcommand] = &[
    sub("stat", Plain { short: b"eopCrIx", long: &["event", "output", "repeat"], no_command: b"p", ..BASE }),
    sub(
        "record",
        Plain { short: b"eopCFgj", long: &["event", "output", "call-graph"], no_command: b"p", ..BASE },
    ),
    sub("trace", Plain { short: b"eo", no_command: b"p", ..BASE }),
];

pub(super) fn find(name: &[u8]) -> Option<Kind> {
    if let Ok(index) = PLAIN.binary_search_by(|plain| plain.name.as_bytes().cmp(name)) {
        return Some(Kind::Plain(&PLAIN[index]));
    }
    Some(Kind::Subcommand(match name {
        b"uv" => UV,
        b"poetry" | b"pipenv" | b"pdm" | b"hatch" | b"pipx" | b"rye" => RUN,
        b"bundle" => BUNDLE,
        b"rustup" => RUSTUP,
        b"conda" | b"mamba" | b"micromamba" => CONDA,
        b"direnv" => DIRENV,
        b"mise" | b"rtx" => MISE,
        b"pnpm" | b"yarn" | b"bun" => PNPM,
        b"perf" => PERF,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::PLAIN;

    #[test]
    fn the_table_is_sorted_for_its_binary_search() {
        assert!(PLAIN.is_sorted_by(|a, b| a.name < b.name));
    }
}
