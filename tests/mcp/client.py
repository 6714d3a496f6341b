"""Runs the official MCP client over either transport, does what a test asks for, and prints what the client received
as JSON."""
import asyncio
import json
import os
import sys

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

SETTING = json.loads(sys.argv[1])
FOLDER = SETTING["folder"]
SEEN = {"answers": [], "progress": []}


def connect():
    if "url" in SETTING:
        headers = {"Authorization": "Bearer " + SETTING["token"]}
        http = httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(120))
        # The client does not end its session on close, so that it can reconnect later.
        return Client(streamable_http_client(SETTING["url"], http_client=http, terminate_on_close=False))
    return Client(StdioServerParameters(command=SETTING["guard"], args=SETTING["arguments"], env=dict(os.environ)))


def ask(prompt, **more):
    return {"PROMPT": prompt, "cd": FOLDER, "sandbox": "read-only", "model": "gemini-2.5-flash", **more}


async def call(client, tool, arguments, **more):
    """Calls a tool and records the result, which the test compares with its schema."""
    result = await client.call_tool(tool, arguments, **more)
    texts = [block.text for block in result.content]
    SEEN["answers"].append({"tool": tool, "structured": result.structured_content, "texts": texts, "is_error": result.is_error})
    return result.structured_content


async def progress(count, total, message):
    SEEN["progress"].append([count, message])


async def call_id():
    """Returns the id of a call, from its first progress message."""
    while not SEEN["progress"]:
        await asyncio.sleep(0.02)
    return SEEN["progress"][0][1].rsplit("(call ", 1)[1].rstrip(")")


async def done(client, call):
    while True:
        report = await client.call_tool("guard_report", {"id": call})
        if report.structured_content.get("status") != "running":
            return report.structured_content
        await asyncio.sleep(0.1)


async def tour(client):
    SEEN["version"] = client.protocol_version
    await call(client, "guard_check", {"shell": "make && git push"})
    first = await call(client, "gemini", ask("say a word", return_metrics=True, return_all_messages=True), progress_callback=progress)
    await call(client, "gemini", ask("which word?", SESSION_ID=first["SESSION_ID"]))
    for arguments in [{"id": first["call_id"]}, {"id": first["run_id"]}, {}, {"id": "0197f0a0-0000-7000-8000-000000000000"}]:
        await call(client, "guard_report", arguments)
    await call(client, "guard_cancel", {"id": first["call_id"]})
    for arguments in [{"cd": FOLDER}, ask(""), ask("x", timeout="soon"), ask("x", surprise=1), ask("x", cd="/etc"), ask("x", timeout=0),
                      ask("x", SESSION_ID="0197f0a0-0000-7000-8000-000000000000")]:
        await call(client, "gemini", arguments)
    await call(client, "guard_check", {"command": ["ls"], "shell": "ls"})
    await call(client, "guard_report", {"id": "../../etc"})
    await call(client, "guard_cancel", {})
    try:
        await client.call_tool("nobody", {})
    except MCPError as error:
        SEEN["unknown"] = str(error)


async def cancel(client):
    calling = asyncio.create_task(call(client, "gemini", ask("hello"), progress_callback=progress))
    SEEN["call"] = await call_id()
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    calling.cancel()
    SEEN["report"] = await asyncio.wait_for(done(client, SEEN["call"]), 180)


async def cancel_by_tool(client):
    calling = asyncio.create_task(call(client, "gemini", ask("hello"), progress_callback=progress))
    cancelled = await call(client, "guard_cancel", {"id": await call_id()})
    SEEN["cancelled"], SEEN["result"] = cancelled, await calling


async def several(client):
    results = await asyncio.gather(*[call(client, "gemini", ask(f"number {number}")) for number in range(SETTING["count"])])
    SEEN["kinds"] = sorted(str(result.get("error_kind")) for result in results)


async def leave(client):
    asyncio.create_task(call(client, "gemini", ask("hello"), progress_callback=progress))
    print(json.dumps({"call": await call_id()}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    os._exit(0)


async def come_back(client):
    SEEN["report"] = await asyncio.wait_for(done(client, SETTING["call"]), 180)


async def main():
    async with connect() as client:
        SEEN["tools"] = [tool.model_dump(mode="json", by_alias=True) for tool in (await client.list_tools()).tools]
        await {"tour": tour, "cancel": cancel, "cancel_by_tool": cancel_by_tool, "several": several, "leave": leave,
               "come_back": come_back}[SETTING["does"]](client)
    print(json.dumps(SEEN))


asyncio.run(main())
