"""Observe, orient, decide, act, and observe again: one round of raising the coverage of a project, with `guard serve`.
Usage: ooda.py PROJECT COMMAND. The command runs the tests of the project and prints an lcov report."""

import base64, json, os, pathlib, re, sys, urllib.request  # noqa: E401

PROJECT, COMMAND = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
URL = os.environ.get("GUARD_URL", "http://127.0.0.1:8732")
TOKEN_FILE = os.environ.get("GUARD_TOKEN_FILE", os.path.expanduser("~/.local/state/guard/serve-token"))
HEADERS = {"Authorization": f"Bearer {pathlib.Path(TOKEN_FILE).read_text().strip()}", "Content-Type": "application/json"}


def call(path, body=None):
    with urllib.request.urlopen(urllib.request.Request(URL + path, body, HEADERS), timeout=90) as response:
        return json.load(response)


def task(kind, **parameters):
    one = {"task_id": "task", "type": kind, "parameters": parameters, "directory": str(PROJECT)}
    batch = call("/v1/batches", json.dumps([one]).encode())
    while batch["status"] == "pending":
        batch = call(f"/v1/batches/{batch['response_id']}?wait=60")
    result = batch["results"][0]
    return result["output"] if result["error"] is None else sys.exit(result["error"])


def observe():
    coverage = json.loads(task("query_coverage", scope="all", format="json")["coverage_data"])
    print(f"observed: {coverage['totals']['percent']} % of the lines are covered")
    return min(coverage["files"], key=lambda file: file["percent"])["path"]


proposal = task("propose_test", target_cpp_file=observe(), target_line_range="uncovered")
file = proposal.get("test_file", "")
print(f"proposed: {proposal['test_name']} in {file}")
if not re.fullmatch(r"tests/[a-z0-9_]+\.[a-z]+", file) or len(proposal["test_code"]) > 10_000:
    sys.exit("decided: no")  # The rule: a file directly below tests/, of at most 10 kB.
code = base64.b64encode(proposal["test_code"].encode()).decode()
run = task("execute_shell_command", command=f"mkdir -p tests && echo {code} | base64 -d > {file} && {COMMAND}")
(PROJECT / "lcov.info").write_text(run["stdout"] if run["exit_code"] == 0 else sys.exit(run["stderr"]))
observe()
