//! The routes of the server, and the OpenAPI document that utoipa generates from them.

use std::sync::{Arc, LazyLock};

use axum::Router;
use utoipa::OpenApi;
use utoipa::openapi::link::Link;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, PathItem, Ref, RefOr, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Shared;
use super::error::ErrorBody;
use super::{commands, conversations, handlers};

/// The paths that the server answers without a token.
pub(super) const WITHOUT_TOKEN: [&str; 2] = ["/healthz", "/v1/openapi.json"];

/// The HTTP status codes and descriptions of the errors that every path may answer with.
const COMMON_ERRORS: [(&str, &str); 5] = [
    ("400", "A parameter, a header or the body is wrong."),
    ("401", "The token is missing or wrong."),
    ("403", "The request is not meant for this server, or comes from a web page."),
    ("500", "The server has a fault, or the queue contains something that it cannot read."),
    ("503", "The queue cannot be used now, or the server has reached one of its limits. Try again."),
];

#[derive(OpenApi)]
#[openapi(
    info(
        title = "guard serve",
        description = "Submit batches of tasks, poll for their results, or follow them as events; talk to agents in turns.\n\nEvery request but those for \
                       `/healthz` and this document carries the token of the server: `Authorization: Bearer TOKEN`. On a unix \
                       socket no token is needed. Later versions may add fields; ignore those that you do not know."
    ),
    components(schemas(ErrorBody)),
    security(("token" = [])),
)]
struct Document;

/// The operations that take the id of a submitted batch. The OpenAPI document links the answer of `submit` to them.
const FOLLOW_UPS: [&str; 5] = ["poll", "follow", "results", "cancel", "retry_failed"];

fn parts() -> (Router<Arc<Shared>>, utoipa::openapi::OpenApi) {
    let (router, mut document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(handlers::submit, handlers::list))
        .routes(routes!(handlers::poll, handlers::cancel))
        .routes(routes!(handlers::task, handlers::cancel_task))
        .routes(routes!(handlers::results))
        .routes(routes!(handlers::retry_failed))
        .routes(routes!(handlers::follow))
        .routes(routes!(conversations::start_conversation, conversations::list_conversations))
        .routes(routes!(conversations::show_conversation))
        .routes(routes!(conversations::send_message))
        .routes(routes!(commands::command_to_batch))
        .routes(routes!(commands::command_to_conversation))
        .routes(routes!(commands::command_to_task))
        .routes(routes!(commands::command_to_research))
        .routes(routes!(handlers::task_types))
        .routes(routes!(handlers::openapi))
        .routes(routes!(handlers::health))
        .split_for_parts();
    for item in document.paths.paths.values_mut() {
        let PathItem { get, post, delete, .. } = item;
        [get, post, delete].into_iter().flatten().for_each(add_common_errors);
    }
    if let Some(submit) = document.paths.paths.get_mut("/v1/batches").and_then(|item| item.post.as_mut()) {
        add_follow_ups(submit);
    }
    if let Some(components) = &mut document.components {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The content of the token file that `guard serve` names when it starts."))
            .build();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
    (router, document)
}

fn add_common_errors(operation: &mut Operation) {
    for (status, description) in COMMON_ERRORS {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
        let response =
            ResponseBuilder::new().description(description).content("application/json", content).build();
        operation.responses.responses.entry(status.to_string()).or_insert_with(|| response.into());
    }
}

/// Adds links to the OpenAPI document that tell programs which operations take the id from the answer to a
/// submission.
fn add_follow_ups(submit: &mut Operation) {
    let Some(RefOr::T(accepted)) = submit.responses.responses.get_mut("202") else { return };
    for operation in FOLLOW_UPS {
        let link = Link::builder().operation_id(operation).parameter("id", "$response.body#/response_id");
        accepted.links.insert(operation.to_string(), RefOr::T(link.build()));
    }
}

pub(super) fn router() -> Router<Arc<Shared>> {
    parts().0.fallback(handlers::unknown_path).method_not_allowed_fallback(handlers::unknown_method)
}

pub fn document() -> serde_json::Value {
    serde_json::to_value(parts().1).unwrap_or_default()
}

/// Returns the OpenAPI document as JSON text.
pub(super) fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| document().to_string());
    &TEXT
}
