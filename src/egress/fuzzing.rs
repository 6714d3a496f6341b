//! What fuzz targets reach of the gateways: the look into a request's body.

use super::request_body::{Rules, inspect};
use crate::policy::Gateway;

/// The model that a body names, and why it is not handed on, as this gateway sees it; `None` when it cannot be read.
pub fn request(gateway: &Gateway, body: &[u8]) -> Option<(Option<String>, Option<String>)> {
    let rules = Rules {
        model_key: gateway.model.body_key.as_deref(),
        forbid: &gateway.forbid,
        tools: gateway.tools.as_ref(),
    };
    inspect(body, rules).ok().map(|found| (found.model, found.forbidden))
}
