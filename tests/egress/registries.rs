//! Routes that make a [`Server`](crate::support::http_server::Server) a package registry or a git server, each with one
//! small package.
//!
//! Each package is built in a directory of the test with the tools of this machine.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::http_server::{Request, Response};
use crate::support::isolated_command;

/// The name of every package. [`VERSION`] is its version.
pub(crate) const NAME: &str = "guard-tiny";
pub(crate) const VERSION: &str = "1.0.0";
/// The text that the package's only function returns.
pub(crate) const SAYS: &str = "tiny and well";

fn must(command: &mut Command) -> Vec<u8> {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Returns a tar archive of `folder/name`, in which every path begins with `name`.
fn packed(folder: &Path, name: &str) -> Vec<u8> {
    must(Command::new("tar").args(["--owner=0", "--group=0", "-czf", "-", name]).current_dir(folder))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the routes of a pip index below `/simple/` with one wheel.
pub(crate) fn pip(folder: &Path) -> impl Fn(&Request) -> Response + Send + Sync + use<> {
    let module = NAME.replace('-', "_");
    let stem = format!("{module}-{VERSION}");
    let content = folder.join("wheel");
    let information = format!("{stem}.dist-info");
    write(&content.join(format!("{module}.py")), &format!("def says():\n    return {SAYS:?}\n"));
    let metadata = format!("Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n");
    write(&content.join(&information).join("METADATA"), &metadata);
    let wheel = "Wheel-Version: 1.0\nGenerator: guard\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    write(&content.join(&information).join("WHEEL"), wheel);
    let record =
        format!("{module}.py,,\n{information}/METADATA,,\n{information}/WHEEL,,\n{information}/RECORD,,\n");
    write(&content.join(&information).join("RECORD"), &record);
    let file = format!("{stem}-py3-none-any.whl");
    let archive = folder.join(&file);
    let mut zip = Command::new("python3");
    zip.args(["-m", "zipfile", "-c"]).arg(&archive).arg(format!("{module}.py")).arg(&information);
    must(zip.current_dir(&content));
    let wheel = std::fs::read(archive).unwrap();
    let link = format!("../../files/{file}#sha256={}", hex(&Sha256::digest(&wheel)));
    let page = format!("<!DOCTYPE html><html><body><a href=\"{link}\">{file}</a></body></html>");
    move |request| match request.path() {
        path if path == format!("/simple/{NAME}/") => Response::new(200, "text/html", page.as_str()),
        path if path == format!("/files/{file}") => {
            Response::new(200, "application/octet-stream", wheel.as_slice())
        }
        _ => Response::not_found(),
    }
}

/// Returns the routes of an npm registry with one package. The download address uses the `Host` header of the request.
pub(crate) fn npm(
    folder: &Path,
    scheme: &'static str,
) -> impl Fn(&Request) -> Response + Send + Sync + use<> {
    let package = folder.join("npm/package");
    let description = json!({"name": NAME, "version": VERSION, "main": "index.js", "license": "MIT"});
    write(&package.join("package.json"), &description.to_string());
    write(&package.join("index.js"), &format!("module.exports = () => {SAYS:?};\n"));
    let tarball = packed(&folder.join("npm"), "package");
    let file = format!("/{NAME}/-/{NAME}-{VERSION}.tgz");
    move |request| match request.path() {
        path if path == format!("/{NAME}") => {
            let mut version = description.clone();
            let host = request.header("host").unwrap_or_default();
            version["dist"] = json!({"tarball": format!("{scheme}://{host}{file}")});
            let document =
                json!({"name": NAME, "dist-tags": {"latest": VERSION}, "versions": {VERSION: version}});
            Response::json(200, &document)
        }
        path if path == file => Response::new(200, "application/octet-stream", tarball.as_slice()),
        _ => Response::not_found(),
    }
}

/// Returns the routes of a sparse Cargo registry below `/index/` with one crate.
pub(crate) fn cargo(
    folder: &Path,
    scheme: &'static str,
) -> impl Fn(&Request) -> Response + Send + Sync + use<> {
    let stem = format!("{NAME}-{VERSION}");
    let content = folder.join("crate").join(&stem);
    let manifest = format!("[package]\nname = \"{NAME}\"\nversion = \"{VERSION}\"\nedition = \"2021\"\n");
    write(&content.join("Cargo.toml"), &manifest);
    let library = format!("pub fn says() -> &'static str {{ {SAYS:?} }}\n");
    write(&content.join("src/lib.rs"), &library);
    let packed = packed(&folder.join("crate"), &stem);
    let sum = hex(&Sha256::digest(&packed));
    let line =
        json!({"name": NAME, "vers": VERSION, "deps": [], "cksum": sum, "features": {}, "yanked": false});
    let entry = format!("/index/{}/{}/{NAME}", &NAME[..2], &NAME[2..4]);
    move |request| match request.path() {
        "/index/config.json" => {
            let host = request.header("host").unwrap_or_default();
            Response::json(200, &json!({"dl": format!("{scheme}://{host}/dl")}))
        }
        path if path == entry => Response::text(format!("{line}\n")),
        path if path == format!("/dl/{NAME}/{VERSION}/download") => {
            Response::new(200, "application/gzip", packed.as_slice())
        }
        _ => Response::not_found(),
    }
}

/// Returns the routes of a git server below `/git/` with the repository `tiny.git`, which accepts fetches and pushes.
pub(crate) fn git(folder: &Path) -> impl Fn(&Request) -> Response + Send + Sync + use<> {
    let root = folder.join("git");
    let repository = root.join("tiny.git");
    let work = folder.join("git-work");
    let git = |at: &Path, words: &[&str]| {
        let mut git = isolated_command("git", Path::new("/nonexistent"));
        git.args(["-c", "user.name=n", "-c", "user.email=e"]).args(words).current_dir(at);
        must(git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null"))
    };
    write(&work.join("README"), SAYS);
    std::fs::create_dir_all(&root).unwrap();
    git(&work, &["init", "-q", "-b", "main"]);
    git(&work, &["add", "README"]);
    git(&work, &["commit", "-qm", "first"]);
    git(&root, &["clone", "-q", "--bare", work.to_str().unwrap(), "tiny.git"]);
    git(&repository, &["config", "http.receivepack", "true"]);
    move |request| backend(&root, request)
}

/// Runs `git http-backend` as a web server would.
fn backend(root: &Path, request: &Request) -> Response {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let folder = must(isolated_command("git", Path::new("/nonexistent")).arg("--exec-path"));
        Path::new(String::from_utf8(folder).unwrap().trim()).join("git-http-backend")
    });
    let Some(path) = request.path().strip_prefix("/git") else { return Response::not_found() };
    let mut child = isolated_command(program, Path::new("/nonexistent"))
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("REQUEST_METHOD", &request.method)
        .env("PATH_INFO", path)
        .env("QUERY_STRING", request.query())
        .env("CONTENT_TYPE", request.header("content-type").unwrap_or_default())
        .env("CONTENT_LENGTH", request.body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", request.header("content-encoding").unwrap_or_default())
        .env("GIT_PROTOCOL", request.header("git-protocol").unwrap_or_default())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let body = request.body.clone();
    let writer = std::thread::spawn(move || _ = input.write_all(&body));
    let output = child.wait_with_output().unwrap().stdout;
    writer.join().unwrap();
    let end = output.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end else { return Response::new(500, "text/plain", "git said nothing\n") };
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let headers: Vec<(&str, &str)> = head.lines().filter_map(|line| line.split_once(": ")).collect();
    let named =
        |name: &str| headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| *value);
    let status = named("status").and_then(|value| value.get(..3)).and_then(|value| value.parse().ok());
    let kind = named("content-type").unwrap_or("text/plain");
    Response::new(status.unwrap_or(200), kind, &output[end + 4..])
}
