//! Lists the files that hook managers, editors, package managers, shells and similar tools execute or obey without an
//! explicit command of the user.

/// Returns which tool executes or obeys the file at this path, and when; `None` for a file that tools use only on
/// request, such as a Makefile or a test.
pub(crate) fn runner(path: &[u8]) -> Option<&'static str> {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let within = |dir: &str| {
        let dir = dir.as_bytes();
        path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"))
            || path
                .windows(dir.len() + 2)
                .any(|part| part[0] == b'/' && part.ends_with(b"/") && part[1..].starts_with(dir))
    };
    for (names, runner) in NAMES {
        if names.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name)) {
            return Some(runner);
        }
    }
    // Every path in `DIRECTORIES` has a component that starts with a dot. Most paths have none, and need no further
    // check.
    let has_dot = path.starts_with(b".") || path.windows(2).any(|part| part == b"/.");
    for (dirs, runner) in DIRECTORIES.iter().filter(|_| has_dot) {
        if dirs.iter().any(|dir| within(dir)) {
            return Some(runner);
        }
    }
    name.ends_with(b".code-workspace").then_some("an editor, when the directory is opened")
}

const NAMES: [(&[&str], &str); 8] = [
    (
        &[
            ".pre-commit-config.yaml",
            ".pre-commit-config.yml",
            ".pre-commit-hooks.yaml",
            "lefthook.yml",
            "lefthook.yaml",
            "lefthook.toml",
            "lefthook.json",
            ".lefthook.yml",
            ".lefthook.yaml",
            "lefthook-local.yml",
            ".overcommit.yml",
            "captainhook.json",
            "grumphp.yml",
            ".simple-git-hooks.json",
            ".simple-git-hooks.js",
            ".simple-git-hooks.cjs",
            ".lintstagedrc",
            ".lintstagedrc.json",
            ".lintstagedrc.yaml",
            ".lintstagedrc.yml",
            ".lintstagedrc.js",
            ".lintstagedrc.mjs",
            ".lintstagedrc.cjs",
            "lint-staged.config.js",
            "lint-staged.config.mjs",
            "lint-staged.config.cjs",
        ],
        "git, through a hook manager",
    ),
    (
        &[".envrc", ".mise.toml", "mise.toml", ".mise.local.toml", ".rtx.toml", ".autoenv", ".autoenv.zsh"],
        "a shell, when it enters the directory (direnv, mise, autoenv)",
    ),
    (
        &[
            ".exrc",
            ".nvimrc",
            ".nvim.lua",
            ".vimrc",
            ".lvimrc",
            ".dir-locals.el",
            ".dir-locals-2.el",
            ".devcontainer.json",
        ],
        "an editor, when the directory or a file in it is opened",
    ),
    (
        &[".gdbinit", ".lldbinit", ".irbrc", ".pryrc", ".rspec", ".pythonstartup"],
        "a debugger or an interpreter, when it starts",
    ),
    (
        &[".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", ".pnpmfile.mjs", "bunfig.toml"],
        "a package manager, with every command",
    ),
    (&[".mcp.json", "opencode.json"], "any coding agent that is started in this worktree"),
    (
        &[
            ".gitlab-ci.yml",
            ".travis.yml",
            ".drone.yml",
            "Jenkinsfile",
            "azure-pipelines.yml",
            "bitbucket-pipelines.yml",
            ".cirrus.yml",
        ],
        "a build server, with its secrets, when the branch is pushed",
    ),
    (
        &[".bazelrc", ".buckconfig", "gradle-wrapper.properties", "gradle-wrapper.jar"],
        "a build tool, with every command",
    ),
];

const DIRECTORIES: [(&[&str], &str); 6] = [
    (&[".husky", ".githooks", ".git-hooks", ".lefthook", ".hooks"], "git, as a hook"),
    (
        &[".vscode", ".idea", ".fleet", ".zed", ".devcontainer", ".nvim", ".vim"],
        "an editor, when the directory is opened",
    ),
    (
        &[".claude", ".gemini", ".codex", ".cursor", ".opencode", ".guard"],
        "any coding agent that is started in this worktree",
    ),
    (
        &[".github/workflows", ".github/actions", ".circleci", ".gitea/workflows", ".forgejo/workflows"],
        "a build server, with its secrets, when the branch is pushed",
    ),
    (&[".cargo", ".mvn", ".bundle"], "a build tool, with every command, also from an editor"),
    (&[".yarn/plugins", ".yarn/releases"], "a package manager, with every command"),
];

/// The names of `package.json` scripts that a package manager runs on installation.
const AT_INSTALL: [&str; 9] = [
    "preinstall",
    "install",
    "postinstall",
    "preprepare",
    "prepare",
    "postprepare",
    "prepublish",
    "dependencies",
    "pnpm:devPreinstall",
];

/// Returns the install scripts and hook settings of a `package.json` that are new or changed: (name, text). Returns all
/// if `old` is missing or not JSON. Fails if guard cannot parse `new`: a package manager may accept more than guard
/// does, such as deeper nesting.
pub(crate) fn install_scripts(
    old: Option<&[u8]>,
    new: &[u8],
) -> Result<Vec<(String, String)>, serde_json::Error> {
    let scripts = |text: &[u8]| -> Result<Vec<(String, String)>, serde_json::Error> {
        let json = serde_json::from_slice::<serde_json::Value>(text)?;
        let text_of =
            |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let scripts = AT_INSTALL.iter().filter_map(|name| Some((*name, json.get("scripts")?.get(name)?)));
        let hooks = ["husky", "simple-git-hooks", "gitHooks", "pre-commit", "lint-staged"];
        let hooks = hooks.iter().filter_map(|name| Some((*name, json.get(name)?)));
        Ok(scripts.chain(hooks).map(|(name, value)| (name.to_string(), text_of(value))).collect())
    };
    let before = old.and_then(|old| scripts(old).ok()).unwrap_or_default();
    Ok(scripts(new)?.into_iter().filter(|script| !before.contains(script)).collect())
}
