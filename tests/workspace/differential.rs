// slow
//! Runs the same scripts with real git in a plain copy and inside `guard run`. The output, exit codes and trees must be
//! the same.
//!
//! Dates are fixed, so that commits have the same hashes on both sides. Intended differences are not compared: the
//! location of the git directory (`rev-parse --git-dir`), the number of objects in it, and the first entries of the
//! reflog.

use std::path::{Path, PathBuf};

use crate::support::{Scratch, TestEnvironment, git, in_two_environments};

/// A name and a shell script. A case can use the files that earlier cases left.
type Case = (&'static str, &'static str);

/// A script that makes a repository with many kinds of content.
const SAMPLE: &str = r#"
export GIT_AUTHOR_DATE='2024-01-02T03:04:05Z' GIT_COMMITTER_DATE='2024-01-02T03:04:05Z'
git init -q -b main library && (cd library && echo lib > lib.c && git add . \
  && git -c user.name=L -c user.email=l@l commit -qm lib)
git init -q -b main sample && cd sample
git config user.name 'Ann Author' && git config user.email ann@example.org
mkdir -p src docs sub/deep
printf 'int main(void)\n{\n\treturn 0;\n}\n' > src/main.c
for i in $(seq 40); do echo "line $i"; done > docs/long.txt
printf 'a b\n' > 'docs/with space.txt'
printf '\000\001\002binary\377\n' > image.dat
printf 'one\r\ntwo\r\n' > crlf.txt
printf '@echo off\n' > run.bat
printf '*.bat text eol=crlf\n*.dat binary\n*.txt -text\n' > .gitattributes
printf '*.log\nnode_modules/\n/out/\n' > .gitignore
printf '#!/bin/sh\necho tool\n' > tool.sh && chmod +x tool.sh
ln -s src/main.c link
printf 'status:\n\t@git status -s\nhead:\n\t@git rev-parse HEAD\n' > Makefile
printf '{"name":"x","version":"1.0.0","scripts":{"log":"git log --oneline -2","save":"git add -A && git commit -m npm"}}\n' > package.json
echo deep > sub/deep/file
git add -A && git commit -qm 'first commit

with a body'
git tag -a v1.0 -m 'version one'
git switch -q -c side
echo side > side && git add side && git commit -qm side
git switch -q main
sed -i 's/line 7$/line seven/; s/line 33$/line thirty-three/' docs/long.txt
GIT_AUTHOR_DATE='2024-02-03T04:05:06+0100' git commit -qam 'change two lines' --author='Bob B <bob@example.org>'
git merge -q --no-ff -m 'merge side' side
git tag light
git -c protocol.file.allow=always submodule --quiet add ../library lib
git commit -qm 'add a submodule'
git submodule --quiet deinit -f lib && rm -rf .git/modules
git gc -q && git commit-graph write --reachable
# As a checkout makes them, with the ends of lines that attributes ask for.
git rm -q --cached -r . && git reset -q --hard
"#;

/// A script that runs every case and prints `number code length-of-output length-of-errors`, then the output and the
/// errors.
const DRIVER: &str = r#"
cases=$1 into=$(mktemp -d) || exit 1
for file in "$cases"/*.case; do
    bash -c "$(cat "$file")" > "$into/out" 2> "$into/err" < /dev/null
    echo "$(basename "$file" .case) $? $(stat -c '%s' "$into/out") $(stat -c '%s' "$into/err")"
    cat "$into/out" "$into/err"
done
rm -rf "$into"
"#;

/// The output and the exit code of one case, with or without guard.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    code: String,
    output: Vec<u8>,
    error: Vec<u8>,
}

fn understand(mut bytes: &[u8], tree: &Path) -> Vec<Said> {
    let tree = tree.to_str().unwrap().as_bytes();
    let mut all = Vec::new();
    while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
        let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let words: Vec<&str> = line.split(' ').collect();
        let [_, code, output, error] = words[..] else { panic!("{line:?}") };
        let (output, error): (usize, usize) = (output.parse().unwrap(), error.parse().unwrap());
        let rest = &bytes[end + 1..];
        let part = |bytes: &[u8]| replaced(bytes, tree, b"<tree>");
        all.push(Said {
            code: code.to_string(),
            output: part(&rest[..output]),
            error: part(&rest[output..output + error]),
        });
        bytes = &rest[output + error..];
    }
    all
}

fn replaced(text: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut result = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
        result.extend_from_slice(&rest[..at]);
        result.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    result.extend_from_slice(rest);
    result
}

/// Returns the first difference of two texts, with a few lines after it.
fn first_difference(what: &str, bare: &[u8], guarded: &[u8]) -> String {
    let line = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
    let lines = |bytes: &[u8]| bytes.split(|&byte| byte == b'\n').map(line).collect::<Vec<_>>();
    let (bare, guarded) = (lines(bare), lines(guarded));
    let Some(at) = (0..bare.len().max(guarded.len())).find(|&at| bare.get(at) != guarded.get(at)) else {
        return String::new();
    };
    let from = |lines: &[String]| {
        lines.iter().skip(at).take(4).map(|line| format!("      {line}\n")).collect::<String>()
    };
    format!("    {what}, line {}, of git:\n{}    and of guard:\n{}", at + 1, from(&bare), from(&guarded))
}

/// The last case, which prints the final state.
const LAST: Case =
    ("state at the end", "git ls-files -s; git status --porcelain=v2 -b; git diff; git diff --cached");

/// Returns the root directory of an environment.
fn root(environment: &TestEnvironment) -> PathBuf {
    environment.temporary_directory().parent().unwrap().to_path_buf()
}

/// Runs the cases with plain git and under guard. Fails if anything differs.
fn compare(environment: &TestEnvironment, cases: &[Case]) {
    let root = root(environment);
    environment.run_outside(&format!("rm -rf library sample plain cases .worktrees; ({SAMPLE})"));
    environment.run_outside("cp -a sample plain && cd plain && git switch -q -c task/same && git status > /dev/null; mkdir ../cases");
    let all: Vec<Case> = cases.iter().copied().chain([LAST]).collect();
    for (number, (_, script)) in all.iter().enumerate() {
        std::fs::write(root.join(format!("cases/{number:03}.case")), script).unwrap();
    }
    let driver = root.join("cases/driver");
    std::fs::write(&driver, DRIVER).unwrap();
    let words = [driver.to_str().unwrap(), root.join("cases").to_str().unwrap()].map(str::to_string);

    let dates = ["GIT_AUTHOR_DATE=2024-05-06T07:08:09Z", "GIT_COMMITTER_DATE=2024-05-06T07:08:09Z"];
    let mut bare = environment.command("bash");
    bare.args(&words).current_dir(root.join("plain"));
    for (name, value) in dates.iter().filter_map(|pair| pair.split_once('=')) {
        bare.env(name, value);
    }
    let bare = environment.run_to_end(bare, b"");
    let options = [
        "-q",
        "--policy",
        "strict",
        "--keep",
        "--name",
        "same",
        "--read",
        root.to_str().unwrap(),
        "--env",
        dates[0],
        "--env",
        dates[1],
    ];
    let mut guarded = environment.guard_run(&options, &["bash", &words[0], &words[1]]);
    guarded.current_dir(root.join("sample"));
    let guarded = environment.run_to_end(guarded, b"");
    assert_eq!((bare.code, guarded.code), (0, 0), "{}: {}", environment.name(), guarded.error);

    let tree = root.join(".worktrees/sample-same");
    let (bare, guarded) = (understand(&bare.output, &root.join("plain")), understand(&guarded.output, &tree));
    assert_eq!((bare.len(), guarded.len()), (all.len(), all.len()));
    let mut differences = String::new();
    for ((name, script), (bare, guarded)) in all.iter().zip(bare.iter().zip(&guarded)) {
        if bare != guarded {
            differences +=
                &format!("=== {name}: {script}\n    exit codes {} and {}\n", bare.code, guarded.code);
            differences += &first_difference("output", &bare.output, &guarded.output);
            differences += &first_difference("errors", &bare.error, &guarded.error);
        }
    }
    assert!(differences.is_empty(), "{}:\n{differences}", environment.name());

    // Compares the commits and files from outside the sandbox.
    let state = "git log --format='%H %P %an %ae %ad %cn' && find . -path ./.git -prune -o -printf '%P %y %m %l\\n' | sort \
                 && find . -path ./.git -prune -o -type f -print0 | sort -z | xargs -0 sha256sum";
    let seen = |folder: &str| environment.run_outside(&format!("cd {folder} && {state}"));
    let (bare, guarded) = (seen("plain"), seen(".worktrees/sample-same"));
    let difference = first_difference("state", bare.as_bytes(), guarded.as_bytes());
    assert!(difference.is_empty(), "{}: {difference}", environment.name());
    assert_eq!(
        environment.run_outside("cd sample && git fsck --strict 2>&1 | grep -v dangling || true"),
        "",
        "{}",
        environment.name()
    );
}

const LOOKING: &[Case] = &[
    ("status of a clean tree", "git status; git status -s; git status -sb; git status --porcelain=v2 -b"),
    ("no difference", "git diff --exit-code; echo $?; git diff --cached --quiet; echo $?"),
    (
        "changes",
        "sed -i 's/line 2$/line two/; s/line 20$/line twenty/' docs/long.txt; echo new > new; echo x > a.log; \
         rm tool.sh; chmod +x crlf.txt; echo staged >> src/main.c; git add src/main.c; echo more >> src/main.c",
    ),
    ("status", "git status; git status -s; git status --porcelain=v2 -b -z; git status --ignored -uall"),
    ("status in colours", "git -c color.ui=always status; git -c color.status=always status -sb"),
    ("status below", "cd sub/deep && git status && git -C .. status -s"),
    (
        "diff",
        "git diff; git diff --cached; git diff HEAD; git diff --stat; git diff --cached --stat --summary",
    ),
    ("diff by words", "git diff --word-diff; git diff --word-diff=porcelain; git diff --color-words"),
    ("diff in colours", "git diff --color=always; git diff --color-moved --color=always HEAD"),
    (
        "diff forms",
        "git diff --numstat -z; git diff --name-status; git diff --raw; git diff -U0; git diff --check; git diff -R",
    ),
    (
        "diff of revisions",
        "git diff v1.0 main; git diff v1.0...side --stat; git diff --no-index src/main.c crlf.txt; echo $?",
    ),
    (
        "exit codes",
        "git diff --exit-code > /dev/null; echo $?; git diff --quiet; echo $?; git diff --quiet -- sub; echo $?",
    ),
    (
        "grep",
        "git grep -n line -- docs | head -3; git grep -c line; git grep nothing-here; echo $?; git grep -e a --and -e b; git grep --color=always deep",
    ),
    (
        "grep in a revision",
        "git grep side HEAD~1; git grep -l int v1.0; git grep --cached staged; git grep --untracked new",
    ),
    (
        "ls-files",
        "git ls-files; git ls-files -s; git ls-files -m -d -o --exclude-standard -t; git ls-files -z | od -c | head -3; git ls-files --eol",
    ),
    (
        "ls-tree",
        "git ls-tree HEAD; git ls-tree -r -t --name-only HEAD~2; git ls-tree -l HEAD src/; git ls-tree nothing; echo $?",
    ),
    (
        "check-ignore and attributes",
        "git check-ignore -v a.log sub; echo $?; git check-attr -a run.bat image.dat",
    ),
    (
        "submodule status",
        "git submodule status; git submodule summary; git diff --submodule=log; git config -f .gitmodules -l",
    ),
];

const HISTORY: &[Case] = &[
    (
        "log",
        "git log; git log --oneline; git log --stat; git log -p -2; git log --graph --oneline --all --decorate",
    ),
    (
        "log in colours",
        "git log --color=always --graph --stat; git log --color=always -p -1; git -c color.ui=always log --oneline --decorate",
    ),
    (
        "log forms",
        "git log --format='%h %an %ad %s%n%b' --date=iso; git log --format=fuller -1; git log --pretty=raw; git log --date=relative --format=%s",
    ),
    (
        "log limits",
        "git log -1 --format=%H; git log main..side --oneline; git log --author=Bob --oneline; git log --grep=two --oneline; git log -S seven --oneline; git log --follow --oneline -- docs/long.txt; git log -L 7,8:docs/long.txt -s",
    ),
    ("log of nothing", "git log nothing; echo $?; git log -- nothing; echo $?; git log --nonsense; echo $?"),
    (
        "show",
        "git show; git show v1.0; git show HEAD~2:docs/long.txt | head -3; git show --stat HEAD~1; git show side:nothing; echo $?; git show --color=always light",
    ),
    (
        "blame",
        "git blame docs/long.txt; git blame -L 5,8 --porcelain docs/long.txt; git annotate src/main.c; git blame -s -e docs/long.txt | head -8; git blame nothing; echo $?",
    ),
    (
        "rev-parse",
        "git rev-parse HEAD HEAD~1 v1.0 v1.0^{} main:src; git rev-parse --abbrev-ref HEAD; git rev-parse --show-toplevel --show-prefix --is-inside-work-tree; git rev-parse --verify -q nothing; echo $?; git rev-parse --short HEAD; cd sub && git rev-parse --show-cdup --show-prefix",
    ),
    (
        "rev-list",
        "git rev-list --all --count; git rev-list --objects HEAD | wc -l; git rev-list --left-right --count v1.0...side; git rev-list --max-count=2 HEAD",
    ),
    (
        "cat-file",
        "git cat-file -t HEAD; git cat-file -p HEAD; git cat-file -s HEAD:image.dat; git cat-file blob HEAD:image.dat; git cat-file -p v1.0; printf 'HEAD\\nnothing\\nHEAD:src\\n' | git cat-file --batch-check; printf 'HEAD:crlf.txt\\n' | git cat-file --batch; git cat-file -e nothing; echo $?",
    ),
    (
        "describe",
        "git describe; git describe --tags; git describe --always --dirty; git describe --all; git name-rev HEAD~1 side; git describe --exact-match; echo $?",
    ),
    ("shortlog", "git shortlog HEAD; git shortlog -sne HEAD; git log | git shortlog -s"),
    (
        "merge-base",
        "git merge-base main side; git merge-base --is-ancestor side main; echo $?; git merge-base --is-ancestor main side; echo $?",
    ),
    (
        "branches and tags",
        "git branch; git branch -a -v; git branch --show-current; git branch --contains v1.0; git tag; git tag -l 'v*' -n; git for-each-ref; git show-ref; git symbolic-ref HEAD; git show-branch main side",
    ),
    (
        "diff-tree",
        "git diff-tree -r HEAD~1; git diff-tree -p HEAD~3; git diff-index HEAD; git diff-files; git range-diff v1.0..side v1.0..main; git whatchanged -1 --i-still-use-this 2> /dev/null; git cherry main side",
    ),
    (
        "format-patch and archive",
        "git format-patch --stdout -1 HEAD~1^2; git archive HEAD src | tar t; git archive --format=tar v1.0 | sha256sum",
    ),
    (
        "help and configuration",
        "git --version; git version; git config user.name; git config --get user.email; git config nothing.here; echo $?; git var GIT_AUTHOR_IDENT; git rev-parse --is-bare-repository; git remote -v; git stash list; git notes list; git check-ref-format --branch x",
    ),
    (
        "what starts more of git",
        "git fsck; git fsck --full --strict --connectivity-only; git column --mode=row < Makefile; git -c column.ui=always tag; git branch --column=always; git describe --contains v1.0; git archive --format=tar.gz HEAD src | tar tz; git range-diff v1.0..side v1.0..main --no-color; git symbolic-ref --short HEAD; git config --list --local > /dev/null; git log --all --no-walk --format=%s; git -P log -1 --format=%s; git count-objects > /dev/null; git diff --submodule=diff v1.0 -- lib; git status --column; git log --show-signature -1 --format=%s; git verify-commit HEAD; echo $?; git -c status.submoduleSummary=true status",
    ),
    (
        "input",
        "printf 'a\\n\\n\\n\\nb\\n' | git stripspace; printf 'x\\n\\nA: b\\n' | git interpret-trailers --trailer C:d; git diff v1.0 | git patch-id; echo x | git column --mode=row",
    ),
    (
        "no pager",
        "GIT_PAGER=cat git log --oneline -1; PAGER='sed s/^/p:/' git -p log --oneline -2; git -c core.pager='sed s/^/q:/' -p log --oneline -1; git --no-pager log -1 --oneline",
    ),
];

const ADDING: &[Case] = &[
    ("add", "echo a > a; echo b >> docs/long.txt; rm side; git add -n .; git add -v a; git status -s"),
    ("add -u", "git add -u; git status -s; echo c > c; git add -A; git status -s"),
    (
        "add nothing",
        "git add; echo $?; git add nothing; echo $?; echo l > x.log; git add x.log; echo $?; git add -f x.log; git status -s",
    ),
    ("commit", "git commit -m 'one two'; git show --stat --format=fuller"),
    (
        "add -p",
        "sed -i 's/line 3$/three/; s/line 25$/25/' docs/long.txt; printf 'y\\nn\\n' | git add -p; git diff --cached; git diff; \
         printf '?\\ns\\nq\\n' | git add -p; printf 'd\\n' | git add -p --no-color docs",
    ),
    ("add -p in colours", "printf 'n\\n' | git -c color.ui=always add -p"),
    ("add -i", "echo i > i; printf 's\\nu\\n1\\n\\ns\\na\\n1\\n\\nq\\n' | git add -i; git status -s"),
    (
        "add -p with an edited hunk",
        "printf 'e\\n' | GIT_EDITOR='sed -i s/^+25/+twentyfive/' git add -p; git diff --cached | tail -5",
    ),
    (
        "add -N and --chmod",
        "echo n > intent; git add -N intent; git diff; git status -s; git add --chmod=+x a; git ls-files -s a; git update-index --chmod=-x a; git status -s",
    ),
    (
        "add from a list",
        "printf 'i\\0intent\\0' | git add --pathspec-from-file=- --pathspec-file-nul; git status -s",
    ),
    (
        "add below",
        "cd sub && echo q > q && git add . && git -C deep status -s && git -C .. ls-files -o --exclude-standard",
    ),
    (
        "update-index",
        "git update-index --refresh; echo $?; git update-index --assume-unchanged c; git ls-files -v c; git update-index --no-assume-unchanged c; git stage docs; git status -s",
    ),
];

const COMMITTING: &[Case] = &[
    (
        "nothing to commit",
        "git commit -m x; echo $?; git commit --allow-empty -m empty; git commit --allow-empty --allow-empty-message -m ''; git log -2 --stat",
    ),
    (
        "-F -",
        "echo 1 > f; git add f; printf 'subject\\n\\nbody # not a comment\\n' | git commit -F -; git log -1 --format=%B",
    ),
    (
        "-F file",
        "echo 2 > f; printf 'from a file\\n\\n  indented\\n\\n\\nlast\\n' > msg.log; git commit -a -F msg.log; git log -1 --format=%B",
    ),
    (
        "heredoc",
        "echo 3 > f; git commit -a -F - <<'END'\nheredoc\n\n- a `b` $(c)\nEND\ngit log -1 --format=%B",
    ),
    (
        "GIT_EDITOR",
        "printf '#!/bin/sh\\nprintf \"by an editor\\\\n\" > \"$1.new\"; cat \"$1\" >> \"$1.new\"; mv \"$1.new\" \"$1\"\\n' > ed.log; chmod +x ed.log; echo 4 > f; GIT_EDITOR=./ed.log git commit -a; git log -1 --format=%B",
    ),
    (
        "EDITOR and VISUAL",
        "echo 5 > f; EDITOR='printf \"by EDITOR\\\\n\" >' git commit -a; echo 6 > f; VISUAL=false git commit -a; echo $?; VISUAL= EDITOR=./ed.log git commit -a -v; git log -2 --format=%B",
    ),
    (
        "core.editor",
        "echo 7 > f; git -c core.editor='echo set >' commit -a; git log -1 --format=%B; echo 8 > f; git commit -a; echo $?",
    ),
    (
        "GIT_EDITOR=true",
        "GIT_EDITOR=true git commit -a; echo $?; git commit -a -m eight -e; echo $?; GIT_EDITOR=: git commit -a -m eight -e; git log -1 --format=%B",
    ),
    (
        "--fixup and --squash",
        "echo 9 > f; git commit -a --fixup HEAD; echo 10 > f; GIT_EDITOR=true git commit -a --squash HEAD~1; git log -2 --format=%B",
    ),
    (
        "-s and trailers",
        "echo 11 > f; git commit -a -s -m signed --trailer 'Reviewed-by: x'; git log -1 --format=%B",
    ),
    (
        "-C and -c",
        "echo 12 > f; git commit -a -C HEAD~1; echo 13 > f; GIT_EDITOR=true git commit -a -c HEAD; git log -2 --format='%an %ad %B'",
    ),
    (
        "author and date",
        "echo 14 > f; git commit -a -m by --author='Z Z <z@z>' --date='2020-01-01T00:00:00Z'; git log -1 --format=fuller; git -c user.name=Other commit --allow-empty -q -m other; git log -1 --format='%an %cn'; GIT_AUTHOR_NAME=Env GIT_AUTHOR_EMAIL=e@e git commit --allow-empty -m env; git log -1 --format='%an %ae'",
    ),
    (
        "part of the changes",
        "echo 15 > f; echo x >> docs/long.txt; echo y > y; git add y; git commit -m only f; git status -s; git commit -m include -i docs; git status -s; git commit -m rest -q; echo $?",
    ),
    (
        "dry run and quiet",
        "echo 16 > f; git commit -a --dry-run; git commit -a --short; git commit -a -q -m quiet; git commit --porcelain; echo $?",
    ),
    (
        "a message from a file that is not there",
        "echo 17 > f; git commit -a -F nothing; echo $?; git commit -a -m ''; echo $?; git commit -m x nothing; echo $?; git commit -a -m last",
    ),
    (
        "cleanup",
        "echo 18 > f; printf '# a\\n\\nb\\n' | git commit -a --cleanup=verbatim -F -; git log -1 --format=%B; echo 19 > f; git commit -a -m 'a -- b' -m 'second paragraph' -m '-m'; git log -1 --format=%B",
    ),
    (
        "encodings",
        "echo 20 > f; git commit -a -m \"$(printf 'caf\\303\\251 \\360\\237\\230\\200')\"; echo 21 > f; printf 'latin \\351\\n' | git -c i18n.commitEncoding=ISO-8859-1 commit -a -F -; git log -2 --format=%B; git cat-file -p HEAD",
    ),
    (
        "a template and verbose",
        "printf 'template\\n' > t.log; echo 22 > f; GIT_EDITOR='cat' git commit -a -t t.log; echo $?; GIT_EDITOR='sed -i 1s/.*/done/' git commit -a -v -t t.log; git log -1 --format=%B",
    ),
];

const UNDOING: &[Case] = &[
    (
        "restore",
        "echo x > src/main.c; rm link; git restore src/main.c link; git status -s; git restore nothing; echo $?",
    ),
    (
        "restore --staged",
        "echo y > tool.sh; git add tool.sh; git restore --staged tool.sh; git status -s; git restore -p tool.sh < /dev/null; git restore .; git status -s",
    ),
    (
        "restore --source",
        "git restore --source=v1.0 docs; git status -s; git diff --stat; git restore -s HEAD~2 -S -W docs/long.txt; git status -s; git restore --source=HEAD --staged --worktree docs; git status -s",
    ),
    (
        "restore -p",
        "sed -i '1s/^/# /; 30s/^/# /' docs/long.txt; printf 'y\\nn\\n' | git restore -p; git diff; git restore docs",
    ),
    (
        "rm",
        "git rm side; git rm -r sub; git rm --cached tool.sh; git rm -n link; git rm nothing; echo $?; echo m >> src/main.c; git rm src/main.c; echo $?; git rm -f src/main.c; git status",
    ),
    (
        "mv",
        "git restore --staged --worktree .; git mv docs papers; git mv -v src/main.c src/core.c; git mv nothing x; echo $?; git mv crlf.txt link; echo $?; git mv -f crlf.txt link; git mv -k nothing x; git status -s; git diff --cached -M --stat",
    ),
    (
        "commit the renames",
        "git commit -m renames; git log --follow --oneline -- src/core.c; git show --stat -M",
    ),
    (
        "apply",
        "sed -i 's/return 0/return 1/' src/core.c; git diff > p.log; git restore .; git apply --stat --check p.log; git apply -v p.log; git diff --stat; git apply p.log; echo $?; git apply -R p.log; git status -s; git apply --cached p.log; git status -s; git apply --index -R p.log; echo $?; git apply -3 p.log; echo $?; git status -s",
    ),
    (
        "apply from standard input",
        "git restore -S -W .; git diff v1.0 HEAD~2 -- docs/long.txt | git apply -p1 --reject --directory=. ; echo $?; printf 'nonsense\\n' | git apply; echo $?",
    ),
    ("rm everything", "git rm -q -r papers; git status -s | head; git restore -S -W papers; git status -s"),
];

const CALLING: &[Case] = &[
    ("make", "make -s status; make head; make -s status head -j2"),
    ("npm", "npm run -s log; echo npm > npm-file; npm run -s save; git log -1 --stat"),
    (
        "python",
        "python3 - <<'END'\nimport subprocess\nprint(subprocess.run(['git', 'log', '--oneline', '-2'], capture_output=True))\n\
         print(subprocess.check_output('git rev-parse HEAD | tr a-f A-F', shell=True))\n\
         print(subprocess.call(['git', 'rev-parse', '--verify', '-q', 'x']))\n\
         p = subprocess.Popen(['git', 'hash-object', '--stdin'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n\
         print(p.communicate(b'\\x00\\xff' * 70000))\n\
         open('py', 'w').write('py')\nsubprocess.check_call(['git', 'add', 'py'])\nsubprocess.check_call(['git', 'commit', '-qm', 'by python'])\nEND\ngit log -1 --stat",
    ),
    (
        "perl",
        "perl -e 'print `git log -1 --format=%s`; system(\"git\", \"status\", \"-s\"); exec \"git\", \"rev-parse\", \"HEAD\"'",
    ),
    (
        "an absolute path",
        "/usr/bin/git status -sb; /usr/bin/git log -1 --oneline; \"$(git --exec-path)/git\" rev-parse HEAD; \"$(git --exec-path)/git-status\" -s; echo a > abs; /usr/bin/git add abs; /usr/bin/git commit -m absolute",
    ),
    (
        "shells",
        "sh -c 'git status -s; git log -1 --oneline'; sh -ec 'git rev-parse --verify nothing; echo unreachable'; echo $?; bash -lc 'git rev-parse HEAD' ; eval 'git log -1 --format=%s'; (git rev-parse HEAD); env -i PATH=\"$PATH\" HOME=\"$HOME\" ${GUARD_CONTROL:+GUARD_CONTROL=$GUARD_CONTROL} git log -1 --format=%s; command git log -1 --format=%s; exec git log -1 --format=%t",
    ),
    (
        "xargs",
        "git ls-files | xargs git ls-files -s; git ls-files -z '*.txt' | xargs -0 -n1 git log --oneline -1 --; seq 20 | xargs -P4 -I{} git rev-parse HEAD",
    ),
    (
        "find",
        "find . -name '*.txt' -not -path './.git/*' | sort; find docs -type f -exec git ls-files -s {} + ; find sub -type f -exec git log -1 --format=%s -- {} \\;",
    ),
    (
        "pipes and files",
        "git log --oneline | head -1; git diff v1.0 > d.log; wc -l < d.log; git show HEAD:Makefile | git hash-object --stdin; git hash-object Makefile; git hash-object --stdin-paths <<< Makefile; git hash-object -t blob --no-filters run.bat; git cat-file blob HEAD:run.bat | od -c; od -c run.bat",
    ),
    (
        "a reader that goes away",
        "git log -p --all 2>&1 | head -c 10 | wc -c; yes 2> /dev/null | head -c 100000 | git hash-object --stdin",
    ),
    (
        "a copied folder name",
        "cd docs && git ls-files && git log --oneline -1 . && git -C ../sub/deep log --oneline -1 -- file && git --no-pager -C .. -C src ls-files && git --literal-pathspecs ls-files '*.txt'",
    ),
    (
        "at once",
        "for i in 1 2 3 4 5 6 7 8; do git rev-parse HEAD & done; wait; timeout 20 git status -s; nice git log -1 --format=%s",
    ),
    (
        "a signal",
        "bash -c 'kill -TERM $$'; echo $?; git log --nonsense > /dev/null 2>&1; echo $?; GIT_TRACE=0 git rev-parse HEAD",
    ),
];

const FILES: &[Case] = &[
    (
        "names",
        "touch 'with  two spaces' \"$(printf 'line\\nfeed')\" \"$(printf 'tab\\there')\" \"$(printf 'not-utf8-\\377\\376')\" -- '-dash' '--force' 'q\"uote' \"ap'o\" 'back\\slash' ':colon' '*' '[x]' '#hash' \"$(printf 'caf\\303\\251')\"; \
         git status -s; git status -s -z | od -c; git -c core.quotePath=false status -s",
    ),
    ("names added", "git add -A; git status --porcelain=v2; git ls-files -z | od -c | tail -12"),
    (
        "names one by one",
        "git restore --staged .; git add -- -dash ./--force ':(literal)*' './:colon'; git add \"$(printf 'line\\nfeed')\" \"$(printf 'not-utf8-\\377\\376')\"; git status -s; git add -dash; echo $?; git add -A; git commit -m names; git log -1 --stat; git log -1 --oneline -- \"$(printf 'not-utf8-\\377\\376')\"",
    ),
    (
        "names moved",
        "git mv -- -dash +plus; git mv \"$(printf 'line\\nfeed')\" \"$(printf 'two\\nlines\\nhere')\"; git rm -q -- --force; git rm -q \"$(printf 'not-utf8-\\377\\376')\"; git status -s; git commit -q -m moved; git show --stat --format=%s",
    ),
    (
        "binary",
        "printf '\\000\\377changed' > image.dat; git diff; git diff --binary; git diff --stat; git add image.dat; git commit -m binary; git show --stat; head -c 300000 /dev/urandom | tr -dc '\\000-\\177' | head -c 0 > empty.dat; git add empty.dat; git status -s",
    ),
    (
        "line ends",
        "printf 'a\\r\\nb\\n' > mixed.bat; git add mixed.bat; git ls-files --eol; printf 'x\\n' > run.bat; git diff; git add --renormalize .; git status -s; git -c core.autocrlf=true diff crlf.txt; printf 'c\\r\\n' > auto; git -c core.autocrlf=input add auto; touch -d 2001-01-01 auto; git -c core.safecrlf=true -c core.autocrlf=input add auto; git show :auto | od -c; git commit -qm ends; od -c run.bat; rm *.bat auto; git restore '*.bat' auto; od -c run.bat auto",
    ),
    (
        "working-tree encodings",
        "printf '*.u16 working-tree-encoding=UTF-16LE text\\n' >> .gitattributes; printf 'h\\000i\\000\\n\\000' > t.u16; git add .gitattributes t.u16; git show :t.u16; rm t.u16; git restore t.u16; od -c t.u16; git commit -qm encodings",
    ),
    (
        "links",
        "ln -s nowhere dangling; ln -s ../outside out-link; ln -sfn docs link; git add -A; git status -s; git diff --cached; git commit -m links; rm dangling; git restore dangling; readlink dangling; mkdir real; echo r > real/r; ln -s real beyond; git add beyond/r; echo $?; git add -A; git commit -qm beyond",
    ),
    (
        "modes",
        "chmod +x docs/long.txt; chmod -x tool.sh; git diff; git diff --summary; git commit -am modes; git ls-tree HEAD tool.sh docs/long.txt; git -c core.fileMode=false status -s; chmod 600 Makefile; git status -s; chmod 644 Makefile",
    ),
    (
        "a file becomes a folder",
        "rm side; mkdir side; echo f > side/f; git add -A; git status -s; git commit -qm folder; git rm -rq side; echo again > side; git add side; git commit -qm file; git show --stat --format=%s",
    ),
    (
        "an inner repository",
        "mkdir inner && (cd inner && git init -q -b main && git config user.name I && git config user.email i@i && echo i > i && git add i && git commit -qm inner && git checkout -q -b other && git log --oneline); git status -s; rm -rf inner",
    ),
    (
        "many files",
        "mkdir many && (cd many && for i in $(seq 600); do echo $i > f$i; done); git add many; git status -s | wc -l; git commit -q -m many; git show --stat | tail -1; git rm -rq many; git commit -qm fewer",
    ),
    (
        "a long path",
        "d=$(printf 'd%.0s' $(seq 200)); mkdir -p $d/$d/$d; echo l > $d/$d/$d/file; git add $d; git commit -qm long; git ls-files | awk 'length > 500 { print length }'",
    ),
];

const LARGE: &[Case] = &[
    (
        "ten megabytes on standard input",
        "head -c 10000000 /dev/zero | git hash-object --stdin; head -c 10000000 /dev/zero | tr '\\000' x | /usr/bin/git hash-object -t blob --stdin",
    ),
    (
        "a message of a mebibyte",
        "echo 1 > f; git add f; (echo subject; echo; head -c 1048576 /dev/zero | tr '\\000' m | fold -w 72) | git commit -q -F -; git log -1 --format=%B | sha256sum; git cat-file -s HEAD",
    ),
    (
        "a message of a hundred thousand bytes as an argument",
        "echo 2 > f; git commit -a -q -m \"$(head -c 100000 /dev/zero | tr '\\000' m)\"; git log -1 --format=%B | sha256sum; git log -1 --format=%s | wc -c",
    ),
    (
        "a file of twenty megabytes",
        "head -c 20000000 /dev/zero > big.dat; git add big.dat; git commit -m big; git cat-file -s HEAD:big.dat; git diff --stat HEAD~1; git rm -q big.dat; git commit -qm smaller",
    ),
    (
        "many arguments",
        "for i in $(seq 3000); do echo $i > many-$i; done; git add many-*; git commit -q -m many; git ls-files many-* | wc -l; git rm -q many-*; git commit -qm few",
    ),
];

#[test]
fn git_status_and_diff_behave_as_without_guard() {
    in_two_environments(|environment| compare(environment, LOOKING));
}

#[test]
fn git_history_commands_behave_as_without_guard() {
    in_two_environments(|environment| compare(environment, HISTORY));
}

#[test]
fn git_add_behaves_as_without_guard() {
    in_two_environments(|environment| compare(environment, ADDING));
}

#[test]
fn git_commit_behaves_as_without_guard() {
    in_two_environments(|environment| compare(environment, COMMITTING));
}

#[test]
fn git_restore_rm_and_mv_behave_as_without_guard() {
    in_two_environments(|environment| compare(environment, UNDOING));
}

#[test]
fn git_called_by_make_npm_python_and_shells_behaves_as_without_guard() {
    in_two_environments(|environment| compare(environment, CALLING));
}

#[test]
fn git_with_every_kind_of_file_behaves_as_without_guard() {
    in_two_environments(|environment| compare(environment, FILES));
}

#[test]
fn git_with_large_files_behaves_as_without_guard() {
    in_two_environments(|environment| compare(environment, LARGE));
}

/// 100 MB on guard's standard input must reach git unchanged.
#[test]
fn git_gets_a_hundred_megabytes_from_standard_input_unchanged() {
    in_two_environments(|environment| {
        let input = vec![0xa5; 100_000_000];
        let mut bare = environment.command("git");
        bare.args(["hash-object", "--stdin"]);
        let bare = environment.run_to_end(bare, &input);
        let mut guarded = environment
            .guard_run(&["-q", "--auto", "--policy", "strict"], &["git", "hash-object", "--stdin"]);
        guarded.current_dir(root(environment).join("repository"));
        let guarded = environment.run_to_end(guarded, &input);
        assert_eq!(
            (guarded.code, &guarded.output),
            (0, &bare.output),
            "{}: {}",
            environment.name(),
            guarded.error
        );
    });
}

/// guard writes the ignore rules of all directories into one file for the top of the working tree. git must ignore the
/// same files by that file.
#[test]
fn merged_ignore_rules_ignore_the_same_files() {
    let scratch = Scratch::new("ignore-rules");
    let rules = [
        ("", "*.o\n!keep.o\n/top\nbuild/\n#no.o\n\\#odd\n\\!odd\ntrailing  \nspace\\ \n\n/\n!\n   \n"),
        ("a", "\u{feff}/only\r\nsub/x\n**/deep\nq/**\n[bc].t?t\n!a.o\nspace\\ \n  lead\nx/\n"),
        ("a/b", "*\n!*.keep\n!deep/\n!.gitignore\n"),
        ("-first", "!*.o\nlast\n"),
        ("odd[x]*?", "star*\n/a\\*b\n!star-not\n"),
        ("no-newline", "z"),
    ];
    let names = [
        "1.o",
        "keep.o",
        "a.o",
        "top",
        "build",
        "x",
        "#odd",
        "!odd",
        "#no.o",
        "trailing",
        "space ",
        "only",
        "sub/x",
        "deep",
        "q/r/s",
        "b.txt",
        "c.tt",
        "  lead",
        "lead",
        "k.keep",
        "deep/k.keep",
        "star1",
        "star-not",
        "a*b",
        "last",
        "z",
        "other",
    ];
    git(&scratch.0, &["init", "--quiet", "tree"]);
    let tree = scratch.0.join("tree");
    let mut all = Vec::new();
    for directory in ["", "a", "a/b", "a/b/c", "-first", "odd[x]*?", "odd[x]*?/s", "no-newline", "x"] {
        for name in names {
            let path = tree.join(directory).join(name);
            // A name of the list may be a directory of another.
            if std::fs::create_dir_all(path.parent().unwrap()).is_ok() && !path.is_dir() {
                std::fs::write(path, "").unwrap();
            }
        }
    }
    for (directory, text) in rules {
        std::fs::write(tree.join(directory).join(".gitignore"), text).unwrap();
        all.extend(guard::git::fuzzing::ignore_rules(directory.as_bytes(), text.as_bytes()));
    }
    let file = scratch.0.join("rules");
    std::fs::write(&file, &all).unwrap();
    let expected = git(&tree, &["ls-files", "--others", "--exclude-standard"]);
    let option = format!("--exclude-from={}", file.display());
    assert_eq!(git(&tree, &["ls-files", "--others", &option]), expected, "{}", String::from_utf8_lossy(&all));
    assert!(
        expected.lines().count() > 60 && !expected.lines().any(|path| path == "top" || path == "1.o"),
        "{expected}"
    );
}
