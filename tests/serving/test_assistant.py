"""The server as an assistant meets it: the SDK's own client over standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import pytest
from tests.cli.running import answered

from shardwright.cli.tools import DOCUMENTS

SMALL = {"model": "gpt2-medium", "cluster": "1x8xA100-SXM-40", "global_batch": 64, "seq_len": 1024, "tokens": "1B"}
LAUNCH = "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --global-batch-size 64 --bf16"
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "plan": ("plan", {**SMALL, "out": "plan.json"}),
    "unknown": ("plan", {**SMALL, "model": "no-such-model"}),
    "export": ("export", {"to": "megatron", "plan": "plan.json"}),
    "refused": ("export", {"to": "torchtitan", "plan": "plan.json"}),
    "slow": (
        "diagnose",
        {
            "plan": "plan.json",
            "measured": "20s",
            "sources": ["train.log"],
            "files": {"train.log": "node0: NCCL INFO NET/IB : No device found.\n"},
            "best": False,
        },
    ),
    "launched": (
        "evaluate",
        {"launch": "run.sh", "files": {"run.sh": LAUNCH}, "cluster": SMALL["cluster"], "model": SMALL["model"]},
    ),
    "elsewhere": ("check", {"plan": __file__}),
    "models": ("models", {}),
}


async def asked() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tools, and the result of each call, from one server."""
    from mcp import ClientSession, StdioServerParameters, stdio_client  # takes seconds

    parameters = StdioServerParameters(command=sys.executable, args=["-m", "shardwright", "mcp"], env=dict(os.environ))
    async with stdio_client(parameters) as (reading, writing), ClientSession(reading, writing) as session:
        await session.initialize()
        tools = (await session.list_tools()).tools
        results = {}
        for name, (tool, arguments) in CALLS.items():
            results[name] = await session.call_tool(tool, arguments)
        return {tool.name: tool for tool in tools}, results


def test_an_assistant_has_the_commands_and_their_documents() -> None:
    pytest.importorskip("mcp")
    tools, results = asyncio.run(asked())
    assert list(tools) == list(DOCUMENTS)
    assert all(tool.description and tool.input_schema["properties"] for tool in tools.values())
    failed = {name for name, result in results.items() if result.is_error}
    assert failed == {"unknown", "refused", "launched", "elsewhere"}
    told = {name: result.structured_content for name, result in results.items()}
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in SMALL.items()]
    assert told["plan"]["plans"] == answered(["plan", *flags, "--json"])["plans"]
    assert "no-such-model" in told["unknown"]["errors"][0]["path"]
    assert "--tensor-model-parallel-size" in told["export"]["arguments"]
    assert any("registry" in problem["message"] for problem in told["refused"]["errors"])
    assert told["slow"]["verdict"] == "slower" and told["slow"]["causes"][0]["name"]
    assert told["launched"]["errors"][0]["message"]
    assert "not in the folder" in told["elsewhere"]["errors"][0]["message"]
    assert told["models"] is None and "llama-3.1-8b" in results["models"].content[0].text
