//! The context limits of models, from `policies/models.toml`. To add a model, add an entry to that file; no code needs
//! to change.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

const TEXT: &str = include_str!("../../../policies/models.toml");

/// How large a prompt for a model may be, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelLimits {
    /// The maximum size that the model accepts.
    pub hard_limit: usize,
    /// The maximum size that guard uses, including the reserve for the answer.
    pub safe_limit: usize,
    /// The size below which prompts should stay, because the model then answers quickly.
    pub target: usize,
    /// Prompts between `target` and this size get a warning; the model answers larger ones slowly.
    pub warning: usize,
    /// Prompts larger than this are likely to time out.
    pub maximum: usize,
}

impl Default for ModelLimits {
    fn default() -> Self {
        Self { hard_limit: 1_000_000, safe_limit: 900_000, target: 16_000, warning: 40_000, maximum: 60_000 }
    }
}

/// The entry of one model in the file. Limits that it does not set are the defaults.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Entry {
    aliases: Vec<String>,
    hard_limit: Option<usize>,
    safe_limit: Option<usize>,
    target: Option<usize>,
    warning: Option<usize>,
    maximum: Option<usize>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Models {
    default: ModelLimits,
    #[serde(default)]
    models: BTreeMap<String, Entry>,
}

impl Models {
    /// Returns the full name of a model, and its entry. For an unknown model, returns the name itself and `None`.
    fn find<'m>(&'m self, model: &'m str) -> (&'m str, Option<&'m Entry>) {
        if let Some(entry) = self.models.get(model) {
            return (model, Some(entry));
        }
        let by_alias = self.models.iter().find(|(_, entry)| entry.aliases.iter().any(|alias| alias == model));
        by_alias.map_or((model, None), |(name, entry)| (name, Some(entry)))
    }

    fn limits(&self, model: &str) -> ModelLimits {
        let default = self.default;
        let Some(entry) = self.find(model).1 else { return default };
        ModelLimits {
            hard_limit: entry.hard_limit.unwrap_or(default.hard_limit),
            safe_limit: entry.safe_limit.unwrap_or(default.safe_limit),
            target: entry.target.unwrap_or(default.target),
            warning: entry.warning.unwrap_or(default.warning),
            maximum: entry.maximum.unwrap_or(default.maximum),
        }
    }
}

/// The parsed file of models. A test ensures that it can be parsed; if it cannot, every model has the default limits,
/// so that conversations still work.
static MODELS: LazyLock<Models> = LazyLock::new(|| {
    toml::from_str(TEXT)
        .unwrap_or_else(|_| Models { default: ModelLimits::default(), models: BTreeMap::new() })
});

/// Returns the limits of a model, named in full or by an alias. An unknown model has the default limits.
pub fn limits_of(model: &str) -> ModelLimits {
    MODELS.limits(model)
}

/// Returns the name that the API uses for a model: `gemini-3-pro` is `gemini-3-pro-preview`. An unknown name is
/// returned unchanged.
pub fn full_model_name(model: &str) -> &str {
    MODELS.find(model).0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(text: &str) -> Models {
        toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn the_file_has_the_three_gemini_models_with_the_required_limits() {
        let file = models(TEXT);
        for model in ["gemini-3-pro-preview", "gemini-2.5-pro", "gemini-2.5-flash"] {
            assert!(file.models.contains_key(model), "{model}");
            let limits = limits_of(model);
            assert_eq!((limits.hard_limit, limits.safe_limit), (1_000_000, 900_000), "{model}");
            assert_eq!((limits.target, limits.warning, limits.maximum), (16_000, 40_000, 60_000), "{model}");
        }
    }

    #[test]
    fn the_limits_of_every_model_increase() {
        let file = models(TEXT);
        for model in file.models.keys().map(String::as_str).chain(["unknown"]) {
            let limits = file.limits(model);
            let order = [limits.target, limits.warning, limits.maximum, limits.safe_limit, limits.hard_limit];
            assert!(order.is_sorted() && order[0] > 0, "{model}: {limits:?}");
        }
    }

    #[test]
    fn an_alias_is_replaced_and_an_unknown_model_keeps_its_name() {
        assert_eq!(full_model_name("gemini-3-pro"), "gemini-3-pro-preview");
        assert_eq!(full_model_name("gemini-2.5-pro"), "gemini-2.5-pro");
        assert_eq!(full_model_name("some-model"), "some-model");
        assert_eq!(limits_of("some-model"), ModelLimits::default());
    }

    /// The adapter of the Gemini CLI replaces model names as well. Both lists must agree, or the limits of one model
    /// would apply to a request that goes to another.
    #[test]
    fn the_aliases_are_those_of_the_gemini_adapter() {
        let adapter: toml::Table = toml::from_str(include_str!("../../../policies/agents/gemini.toml"))
            .unwrap_or_else(|error| panic!("{error}"));
        let aliases = adapter["models"].as_table().map(|table| table.iter().collect::<Vec<_>>());
        let aliases = aliases.unwrap_or_default();
        assert!(!aliases.is_empty());
        for (alias, name) in aliases {
            assert_eq!(Some(full_model_name(alias)), name.as_str(), "{alias}");
        }
    }

    #[test]
    fn an_entry_replaces_only_the_values_it_sets() {
        let file = models(
            "[default]\nhard_limit = 100\nsafe_limit = 90\ntarget = 10\nwarning = 20\nmaximum = 30\n\
             [models.small]\naliases = [\"s\"]\nhard_limit = 50\nsafe_limit = 40\n",
        );
        let limits = ModelLimits { hard_limit: 50, safe_limit: 40, target: 10, warning: 20, maximum: 30 };
        assert_eq!((file.limits("small"), file.limits("s")), (limits, limits));
    }
}
