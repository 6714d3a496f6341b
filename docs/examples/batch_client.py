"""Submits a file of tasks to `guard serve`, polls until they have ended, and prints the results: batch_client.py TASKS.json"""

import json
import os
import sys
import urllib.request

URL = os.environ.get("GUARD_URL", "http://127.0.0.1:8732")
with open(os.environ.get("GUARD_TOKEN_FILE", os.path.expanduser("~/.local/state/guard/serve-token"))) as file:
    HEADERS = {"Authorization": f"Bearer {file.read().strip()}", "Content-Type": "application/json"}


def call(path, body=None):
    with urllib.request.urlopen(urllib.request.Request(URL + path, body, HEADERS), timeout=90) as response:
        return json.load(response)


with open(sys.argv[1], "rb") as file:
    batch = call("/v1/batches", file.read())
while batch["status"] == "pending":
    batch = call(f"/v1/batches/{batch['response_id']}?wait=60")
for result in batch["results"]:
    print(result["task_id"], result["status"], json.dumps(result["error"] or result["output"]))
sys.exit(0 if batch["counts"]["failed"] == 0 else 1)
