// slow
//! Schemathesis generates valid and invalid requests from the OpenAPI document. Every response must match the document.

use std::path::Path;
use std::process::Command;

use super::{Served, echoes};
use crate::support::http_client::HttpAddress;
use crate::support::{one_environment, skip};

#[test]
fn answers_conform_to_the_openapi_document() {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/schemathesis/bin/schemathesis");
    if !program.exists() {
        skip("Schemathesis", "it is not installed; scripts/setup installs it");
        return;
    }
    let environment = one_environment();
    let server = Served::start(&environment, &["--type", "echo"]);
    let HttpAddress::Loopback(address) = &server.address else { panic!("it listens on loopback") };
    let known = server.submit(&echoes(3));
    let (_, bearer) = server.headers.last().unwrap();
    let checks = [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    ];
    let mut command = Command::new("timeout");
    command
        .arg("1200")
        .arg(program)
        .args([
            "run",
            &format!("http://{address}/v1/openapi.json"),
            "--header",
            &format!("Authorization: {bearer}"),
        ])
        .args([
            "--checks",
            &checks.join(","),
            "--max-examples",
            "25",
            "--seed",
            "4711",
            "--request-timeout",
            "70",
        ])
        .env(
            "SCHEMATHESIS_HOOKS",
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve/schemathesis_hooks.py"),
        )
        .env("KNOWN_BATCH", known)
        .current_dir(environment.temporary_directory());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(server.get("/healthz").status, 200);
}
