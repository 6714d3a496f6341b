"""The official client: lists the tools, checks a command, asks the agent, and prints what it saw as JSON."""
import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

guard, folder, gemini_folder = sys.argv[1:4]


def structured(result):
    return getattr(result, "structured_content", None) or getattr(result, "structuredContent", None)


async def main():
    seen = {"progress": []}
    environment = dict(os.environ)
    environment["PATH"] = gemini_folder + ":" + environment["PATH"]
    server = StdioServerParameters(command=guard, args=["mcp", "--root", folder], env=environment)
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        seen["tools"] = [tool.name for tool in (await session.list_tools()).tools]
        seen["check"] = structured(await session.call_tool("guard_check", {"shell": "make && git push"}))

        async def progress(count, total, message):
            seen["progress"].append(message)

        ask = {"PROMPT": "say a word", "cd": folder, "sandbox": "read-only", "model": "gemini-2.5-flash"}
        seen["first"] = structured(await session.call_tool("gemini", ask, progress_callback=progress))
        ask.update(PROMPT="which word?", SESSION_ID=seen["first"]["SESSION_ID"])
        seen["second"] = structured(await session.call_tool("gemini", ask))
        seen["report"] = structured(await session.call_tool("guard_report", {"id": seen["first"]["call_id"]}))
        seen["run"] = structured(await session.call_tool("guard_report", {"id": seen["first"]["run_id"]}))
        try:
            await session.call_tool("gemini", {"cd": folder})
            seen["bad"] = "accepted"
        except Exception as error:
            seen["bad"] = str(error)
    print(json.dumps(seen))


asyncio.run(main())
