//! Compares the shell parser with the real bash: it must accept everything that `bash -n` accepts, and expand braces to
//! the same arguments.

use std::path::{Path, PathBuf};
use std::process::Command;

use guard::judge::command::{Context, Cwd, Request, accepts_shell_text};
use guard::judge::decide::judge;
use proptest::prelude::Strategy;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::support::{policy, skip};

fn bash_accepts(path: &Path) -> bool {
    Command::new("bash")
        .arg("-n")
        .arg(path)
        .output()
        .is_ok_and(|output| output.status.success() && output.stderr.is_empty())
}

/// Returns a few hundred shell scripts that are installed on this machine.
fn scripts() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in [
        "/usr/bin",
        "/usr/sbin",
        "/etc/init.d",
        "/usr/lib/git-core",
        "/usr/share/doc",
        "/var/lib/dpkg/info",
        "/etc/profile.d",
    ] {
        collect(Path::new(folder), 2, &mut found);
    }
    found.sort();
    found
}

fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() && depth > 0 {
            collect(&path, depth - 1, found);
        } else if metadata.is_file() && metadata.len() < 300_000 && is_shell_script(&path) {
            found.push(path);
        }
    }
}

fn is_shell_script(path: &Path) -> bool {
    use std::io::Read;
    let mut head = [0u8; 64];
    let Ok(read) = std::fs::File::open(path).and_then(|mut file| file.read(&mut head)) else { return false };
    let line = String::from_utf8_lossy(&head[..read]);
    let first = line.lines().next().unwrap_or_default();
    first.starts_with("#!")
        && (first.contains("/sh")
            || first.contains("bash")
            || first.contains("dash")
            || first.contains("env sh"))
}

#[test]
fn scripts_that_bash_accepts_are_accepted() {
    if Command::new("bash").arg("--version").output().is_err() {
        skip("scripts that bash accepts", "bash is not installed");
        return;
    }
    let scripts = scripts();
    let mut checked = 0;
    let mut refused = Vec::new();
    for path in &scripts {
        let text = std::fs::read(path).unwrap_or_default();
        match accepts_shell_text(&text) {
            Ok(()) => checked += 1,
            Err(error) if bash_accepts(path) => refused.push(format!("{}: {error}", path.display())),
            Err(_) => {}
        }
    }
    assert!(refused.is_empty(), "{} of {} refused:\n{}", refused.len(), scripts.len(), refused.join("\n"));
    assert!(checked >= 50, "only {checked} scripts on this machine");
    println!("{checked} scripts understood");
}

/// Random words with braces must expand to the arguments that bash passes. An agent could otherwise write a word that
/// guard reads as a harmless command and bash as another.
#[test]
fn braces_expand_as_in_bash() {
    let pieces = [
        "{", "{", "}", "}", ",", ",", "..", "a", "b", "1..3", "c..a", "02..4..2", "'{'", "\\,", "''", "$x",
        "${x}",
    ];
    let words = proptest::collection::vec(proptest::sample::select(pieces.to_vec()), 3..12);
    let mut runner = TestRunner::deterministic();
    let words: Vec<String> =
        (0..3000).map(|_| words.new_tree(&mut runner).unwrap().current().concat()).collect();
    let mut script = "x=value; xa=other; arguments() { printf '%s\\0' \"$#\" \"$@\"; }\n".to_string();
    for word in &words {
        script.push_str(&format!("arguments {word}\n"));
    }
    let output = Command::new("bash").arg("-c").arg(script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let mut printed = output.stdout.split(|byte| *byte == 0);
    let strict = policy("strict");
    let context = Context { cwd: Cwd::Known(b"/work".to_vec()), ..Context::default() };
    let mut known = 0;
    for word in &words {
        let count = std::str::from_utf8(printed.next().unwrap()).unwrap().parse().unwrap();
        let expected: Vec<&[u8]> = printed.by_ref().take(count).collect();
        let text = format!("x=value; xa=other; echo {word}");
        let (_, analysis) = judge(&strict, &Request::Shell(text.into_bytes()), &context);
        let found: Option<Vec<&[u8]>> = analysis.intents[0].args.iter().map(|arg| arg.known()).collect();
        // guard may leave such words to the judgement at run time.
        if found.is_none() && ["$", "\\,"].iter().any(|text| word.contains(text)) {
            continue;
        }
        assert_eq!(found.as_deref(), Some(&expected[..]), "{word}");
        known += 1;
    }
    assert!(known > words.len() / 2, "guard knows the arguments of only {known} words");
}

/// The parser must accept constructs that are easy to get wrong. The test first checks that bash accepts each of them.
#[test]
fn constructs_that_bash_accepts_are_accepted() {
    let texts: &[&str] = &[
        "echo a#b # comment",
        "case $x in (a|b) echo;; *) ;; esac",
        "case x in esac",
        "for ((i=0;i<3;i++)); do echo $i; done",
        "for i do echo $i; done",
        "for i in a; { echo; }",
        "select x in a b; do break; done",
        "while read -r l; do :; done < <(ls)",
        "f() ( cd x )",
        "function f { :; }",
        "function f() { :; } > log",
        "[[ $a =~ ^(a|b)+$ && -f x || ! ( $b < c ) ]]",
        "[[ a == *.c ]] && echo",
        "(( a = 1 , b << 2 ))",
        "((echo a); (echo b))",
        "$( (echo a) ; echo b)",
        "echo $(( (1+2)*3 ))",
        "echo \"${a:-\"b c\"}\" ${a//x/y} ${#a} ${!a} ${a[@]:1:2} ${a^^} ${a@Q}",
        "a=(1 2 [5]=x \"y z\"); a+=(b); a[1]=c; a[i+1]+=d",
        "declare -A m=([a]=1 [b]=2)",
        "cat <<A <<B\na\nA\nb\nB\n",
        "cat <<-'E O F'\n\tx $(y)\n\tE O F\n",
        "cat <<E\n$(echo `date`) ${x:-\"}\"}\nE\n",
        "echo $'a\\'b' $\"loc\"",
        "echo `echo \\`echo a\\``",
        "! true",
        "time -p ls | wc",
        "time",
        "coproc NAME { ls; }",
        "coproc ls -l",
        "exec {fd}<>file 3>&- 2>&1 &>all",
        "echo a >&2 <&3 >|f",
        "if ! a; then b; elif c; then d; else e; fi",
        "{ a; } 2>/dev/null | b &",
        "a && b || c &\nwait",
        "x=1 y=2 cmd",
        "echo {a,b}{1..3} {1..10..2}",
        "echo @(a|b) !(c) +(d)",
        "shopt -s extglob\nls !(*.c)",
        "echo \"a `b \"c\" d` e\"",
        "trap 'echo \"bye\"' EXIT",
        "echo ${x:-'a b'} \"${x:-'a'}\"",
        "cat <<'EOF'\n$(((\nEOF\n",
        "a=\nb",
        "echo \\\nfoo",
        "until a; do b; done",
        "case \"$1\" in -h|--help) usage ;; [0-9]*) n=$1 ;& ?) x ;;& esac",
        "echo $[1+2]",
        "if [ a = b ]; then :; fi",
        "echo a;# comment\necho b",
        "{ echo a\n}",
        "(\necho a\n)",
        "foo() {\n  bar\n}\nfoo",
        "echo \"$(cat <<X\nin )\nX\n)\"",
        "[ -f x ] && . ./x",
        "x=$(case a in a) echo;; esac)",
        "x=`case a in (a) echo;; esac`",
        "echo ${a:=$(b)} ${c:?\"d e\"} ${e%%*(x)}",
        "a=b\\\nc d",
        "alias l='ls -l'",
        "let 'a = b + 1'",
        "((i++)) || true",
        "while :; do break; done; echo x",
        "printf '%s\\n' \"${arr[@]}\" >&2",
        "if (( a > 0 )); then b; fi",
        "for x in \"$@\"; do case $x in a) continue 2;; esac; done",
        "eval \"$(a b)\"",
        "diff <(a) <(b) > >(c)",
        "echo $(<file)",
        "2>&1 ls",
        "<in cat >out",
    ];
    for text in texts {
        let bash = Command::new("bash").args(["-O", "extglob", "-n", "-c", text]).output().unwrap();
        assert!(
            bash.status.success(),
            "bash itself refuses {text:?}: {}",
            String::from_utf8_lossy(&bash.stderr)
        );
        assert_eq!(accepts_shell_text(text.as_bytes()), Ok(()), "{text:?}");
    }
}
