//! The published schemas must be current, and must match the files that they describe.

use std::path::PathBuf;

use guard::cli::SCHEMAS;
use serde_json::Value;

use crate::support::{guard, text};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("schemas")
}

/// The committed schemas must be those that the program generates. `scripts/regenerate` writes them.
#[test]
fn committed_schemas_are_up_to_date() {
    for (name, make) in SCHEMAS {
        let path = folder().join(name);
        let made = format!("{}\n", serde_json::to_string_pretty(&make()).unwrap());
        if std::env::var_os("GUARD_REGENERATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &made).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == made, "schemas/{name} is not what the program makes; run scripts/regenerate");
    }
}

fn as_json(toml: &str) -> Value {
    serde_json::to_value(toml::from_str::<toml::Table>(toml).unwrap()).unwrap()
}

#[test]
fn built_in_policies_fit_the_schema_and_mistakes_do_not() {
    let validator = jsonschema::validator_for(&guard::judge::policy::schema()).unwrap();
    for (name, text) in guard::judge::policy::BUILT_IN {
        let errors: Vec<String> =
            validator.iter_errors(&as_json(text)).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {}", errors.join("\n"));
    }
    for wrong in [
        "version = 2\nname = \"a\"",
        "version = 1",
        "version = 1\nname = \"a\"\nx = 1",
        "version = 1\nname = \"a\"\n[sandbox]\nnamespaces = \"on\"",
        "version = 1\nname = \"a\"\n[toolchains]\ndetect = [\"cobol\"]",
        "version = 1\nname = \"a\"\n[[command]]\nid = \"a\"\naction = \"no\"\nreason = \"r\"",
    ] {
        assert!(!validator.is_valid(&as_json(wrong)), "{wrong}");
    }
}

#[test]
fn verdicts_fit_the_schema() {
    let schema = SCHEMAS.iter().find(|(name, _)| *name == "check.schema.json").unwrap().1();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for command in [
        &["git", "push"][..],
        &["ls"],
        &["git", "-c", "alias.x=!ls", "x"],
        &["bash", "-c", "$X; echo > f"],
        &[""],
    ] {
        let output = guard().args(["check", "--json", "--"]).args(command).output().unwrap();
        let json: Value = serde_json::from_str(&text(&output)).unwrap();
        let errors: Vec<String> = validator.iter_errors(&json).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{command:?}: {}", errors.join("\n"));
        for key in ["decision", "rule", "reason", "instead", "source"] {
            assert!(json.get(key).is_some(), "{command:?} lacks {key}");
        }
    }
}
