#!/usr/bin/env bash
# Observe, orient, decide, act, and observe again: one round of raising the coverage of a project, with `guard serve`.
# Usage: ooda.sh PROJECT COMMAND. The command runs the tests of the project and prints an lcov report. Needs curl and jq.
set -euo pipefail
project=$(realpath "$1") command=$2 url=${GUARD_URL:-http://127.0.0.1:8732}
token=$(cat "${GUARD_TOKEN_FILE:-$HOME/.local/state/guard/serve-token}")
api() { curl -sS --fail-with-body -H "Authorization: Bearer $token" -H 'Content-Type: application/json' "$@"; }

# Submits one task, waits for it, and prints its output.
task() { # TYPE PARAMETERS
    local batch
    batch=$(jq -n --arg type "$1" --argjson parameters "$2" --arg directory "$project" \
        '[{task_id: "task", $type, $parameters, $directory}]' | api --data-binary @- "$url/v1/batches")
    while [[ $(jq -r .status <<<"$batch") == pending ]]; do
        batch=$(api "$url/v1/batches/$(jq -r .response_id <<<"$batch")?wait=60")
    done
    jq '.results[0] | if .error then error(.error) else .output end' <<<"$batch"
}
observe() { task query_coverage '{"scope": "all", "format": "json"}' | jq -r .coverage_data; }

coverage=$(observe)
file=$(jq -r '.files | min_by(.percent).path' <<<"$coverage")
echo "observed: $(jq .totals.percent <<<"$coverage") % of the lines are covered, and fewest of $file"

proposal=$(task propose_test "$(jq -n --arg file "$file" '{target_cpp_file: $file, target_line_range: "uncovered"}')")
echo "proposed: $(jq -r '"\(.test_name) in \(.test_file)"' <<<"$proposal")"

# The rule that decides: a file directly below tests/, of at most 10 kB.
if ! jq -e '(.test_file | test("^tests/[a-z0-9_]+[.][a-z]+$")) and (.test_code | length <= 10000)' <<<"$proposal" >/dev/null; then
    echo "decided: no" && exit 1
fi
echo "decided: yes"

# The sandbox writes and runs the test. What the command prints is the next report.
script=$(jq -r '"mkdir -p tests && echo \(.test_code | @base64) | base64 -d > \(.test_file) && "' <<<"$proposal")$command
result=$(task execute_shell_command "$(jq -n --arg command "$script" '{$command}')")
jq -re 'if .exit_code == 0 then .stdout else error(.stderr) end' <<<"$result" >"$project/lcov.info"
echo "observed: $(observe | jq .totals.percent) % of the lines are covered"
