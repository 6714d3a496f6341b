//! Entry points for fuzz targets: the inspection of a gateway request's body.

use super::request_body::{Rules, inspect};
use crate::judge::policy::Gateway;

/// Inspects a request body by the rules of `gateway`. Returns the model that the body names and the reason for a
/// refusal; `None` if the body is not valid.
pub fn request(gateway: &Gateway, body: &[u8]) -> Option<(Option<String>, Option<String>)> {
    let rules = Rules {
        model_key: gateway.model.body_key.as_deref(),
        forbid: &gateway.forbid,
        tools: gateway.tools.as_ref(),
    };
    inspect(body, rules).ok().map(|found| (found.model, found.forbidden))
}
