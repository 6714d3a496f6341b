//! The built-in policies, embedded from the files in `policies/`.

use super::diagnostic::Source;

/// The name and text of each built-in policy, in the order in which they are listed.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("strict", include_str!("../../../policies/strict.toml")),
    ("standard", include_str!("../../../policies/standard.toml")),
    ("readonly", include_str!("../../../policies/readonly.toml")),
    ("investigator", include_str!("../../../policies/investigator.toml")),
    ("researcher", include_str!("../../../policies/researcher.toml")),
    ("analyst", include_str!("../../../policies/analyst.toml")),
    ("architect", include_str!("../../../policies/architect.toml")),
    ("reviewer", include_str!("../../../policies/reviewer.toml")),
    ("developer", include_str!("../../../policies/developer.toml")),
    ("auditor", include_str!("../../../policies/auditor.toml")),
    ("integrator", include_str!("../../../policies/integrator.toml")),
    ("writer", include_str!("../../../policies/writer.toml")),
];

pub(super) fn source(name: &str) -> Option<Source> {
    let (name, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
    Some(Source { name: format!("builtin:{name}.toml"), text: (*text).into(), built_in: true })
}
