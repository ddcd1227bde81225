"""A Model Context Protocol server over standard input and output: the commands as tools for assistants.

Written with the official SDK (https://github.com/modelcontextprotocol/python-sdk). A tool takes what its command takes
and returns the JSON that its command prints; what is wrong with a request comes back as errors with their remedies, so
that an assistant can mend it. Files of requests, and those that a tool writes, are in one folder, which goes with the
server.
"""

from __future__ import annotations

import json
from functools import partial
from importlib.metadata import version
from typing import Any

import anyio
from mcp import types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from shardwright.errors import bad, suggestion
from shardwright.serving.answers import Answer, error_answer
from shardwright.serving.requests import MOST_SECONDS
from shardwright.serving.tools import Tool, Toolbox
from shardwright.serving.worker import answer_within, prepare

INSTRUCTIONS = """Shardwright predicts and plans the training of large models: which GPUs, which parallel strategy, how
fast, how much memory, how much money. Ask `fit` whether a model fits some GPUs, `plan` for the best strategy on given
machines (out: plan.json keeps it), `shop` for what to rent, `export` for the files that run a plan, `evaluate` how good
a launch script is, `diagnose` why a run is slow. Clusters are written NODESxGPUSxTYPE, joined by +, e.g.
8x8xH100-SXM+16x8xA100-SXM-80, machines with GPUs of several types as 1x(2xRTX4090+1xRTX3090). Where a parameter names
a file, send its text in `files`; files stay for later calls. Times are seconds, money US dollars; every prediction has
an interval."""


def serve(toolbox: Toolbox, folder: str) -> None:
    """Serve the tools over standard input and output until it ends; they work in `folder`."""
    prepare()
    anyio.run(_serve, server(toolbox, folder))


async def _serve(tools: Server[Any]) -> None:
    async with stdio_server() as (reading, writing):
        await tools.run(reading, writing, tools.create_initialization_options())


def server(toolbox: Toolbox, folder: str) -> Server[Any]:
    """Return the server with its tools."""

    async def listed(
        context: ServerRequestContext[Any], asked: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_listed(tool) for tool in toolbox.tools])

    async def called(context: ServerRequestContext[Any], call: types.CallToolRequestParams) -> types.CallToolResult:
        if toolbox.tool(call.name) is None:
            names = [tool.name for tool in toolbox.tools]
            return _result(error_answer(bad(call.name, "is no tool", suggestion(call.name, names))))
        question = partial(toolbox.ask, call.name, call.arguments or {}, folder)
        return _result(await anyio.to_thread.run_sync(answer_within, MOST_SECONDS, question))

    return Server(
        "shardwright",
        version=version("shardwright"),
        instructions=INSTRUCTIONS,
        on_list_tools=listed,
        on_call_tool=called,
    )


def _listed(tool: Tool) -> types.Tool:
    result = tool.result if tool.result.get("type") == "object" else None  # lists come as text alone
    return types.Tool(name=tool.name, description=tool.words, input_schema=tool.parameters, output_schema=result)


def _result(answer: Answer) -> types.CallToolResult:
    failed = "errors" in answer
    document = answer if failed else answer["document"]
    texts = [json.dumps(document, ensure_ascii=False), *answer.get("notes", ())]
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text) for text in texts],
        structured_content=document if isinstance(document, dict) else None,
        is_error=failed,
    )
