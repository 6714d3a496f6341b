//! Finds npm's registries: `registry` and `@scope:registry` in environment variables and npmrc files. If none of them
//! sets `registry`, finds the default registry that npm prints.

use std::path::{Path, PathBuf};

use super::search::Search;
use super::{ini, query_tool};

pub(crate) fn search(search: &mut Search<'_>) {
    let mut is_known = false;
    // npm uses the first `registry` setting that it finds. Each scope may have a registry of its own.
    let mut add = |search: &mut Search<'_>, key: &str, value: &str, from: &str| {
        if key.ends_with(":registry") || key == "registry" && !is_known {
            is_known |= key == "registry";
            search.add_url(value, from);
        }
    };
    for (key, value) in search.environment {
        if let (Some(key), Some(value)) = (key.to_str(), value.to_str())
            && let Some(key) = setting(key)
            && !value.is_empty()
        {
            add(search, &key, value, &format!("npm_config_{key}"));
        }
    }
    for file in files(search) {
        let Some(text) = search.text(&file) else { continue };
        for setting in ini::parse(&text).iter().filter(|setting| setting.section.is_empty()) {
            let value = expanded(search, &setting.value);
            add(search, &setting.key, &value, &file.display().to_string());
        }
    }
    let arguments = ["config", "get", "registry"];
    if !is_known && let Some(answer) = query_tool::query_output(search, &["npm"], &arguments) {
        search.add_url(&answer, "the output of `npm config get registry`");
    }
}

/// Returns the npm setting that an environment variable sets, such as `registry` for `NPM_CONFIG_REGISTRY`; `None` for
/// any other variable. Ignores case, as npm does.
fn setting(variable: &str) -> Option<String> {
    variable.to_ascii_lowercase().strip_prefix("npm_config_").map(str::to_string)
}

/// Returns the paths of the npmrc files that npm may read, from the highest to the lowest precedence. Leaves out the
/// npmrc files of projects, because an agent may have written them.
fn files(search: &mut Search<'_>) -> Vec<PathBuf> {
    let mut named = [None, None, None];
    for (key, value) in search.environment {
        let place = key
            .to_str()
            .and_then(setting)
            .and_then(|key| ["userconfig", "globalconfig", "prefix"].iter().position(|name| *name == key));
        if let Some(place) = place.filter(|_| !value.is_empty()) {
            named[place] = Some(PathBuf::from(value)).filter(|path| path.is_absolute());
        }
    }
    let [user, global, prefix] = named;
    let user = user.or_else(|| Some(search.home?.join(".npmrc")));
    let prefix = prefix.or_else(|| npmrc_prefix(search, user.as_deref()?)).or_else(|| {
        let path = search.variable("PATH")?;
        let node = std::env::split_paths(path).map(|path| path.join("node")).find(|node| node.is_file())?;
        Some(node.canonicalize().ok()?.parent()?.parent()?.to_path_buf())
    });
    let global = global.or_else(|| Some(prefix?.join("etc/npmrc")));
    [user, global, Some(search.etc.join("npmrc"))].into_iter().flatten().collect()
}

/// Returns the path of npm's installation prefix from the setting `prefix` in the user's npmrc; `None` if there is no
/// such setting or it is not an absolute path.
fn npmrc_prefix(search: &mut Search<'_>, user: &Path) -> Option<PathBuf> {
    let text = search.text(user)?;
    let setting = ini::parse(&text).into_iter().find(|setting| setting.key == "prefix")?;
    let value = expanded(search, &setting.value);
    let path = value.strip_prefix("~/").and_then(|rest| Some(search.home?.join(rest)));
    path.or_else(|| Some(PathBuf::from(value))).filter(|path| path.is_absolute())
}

/// Expands `${VARIABLE}` and `${VARIABLE?}` in the value of a setting. A variable that is not set becomes empty.
fn expanded(search: &Search<'_>, value: &str) -> String {
    let mut result = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, behind)) = after.split_once('}') else { break };
        result.push_str(before);
        let known = search.variable(name.trim_end_matches('?'));
        result.push_str(known.and_then(|value| value.to_str()).unwrap_or_default());
        rest = behind;
    }
    result + rest
}
