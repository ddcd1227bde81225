"""The server as an assistant meets it: the SDK's own client over standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import ClientSession, StdioServerParameters, stdio_client

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "plan": (
        "plan_training",
        {"model": "opt-350m", "cluster": "1x8xA100-SXM-40", "global_batch": 64, "seq_len": 1024, "tokens": "1B"},
    ),
    "unknown": (
        "plan_training",
        {"model": "no-such-model", "cluster": "1x8xH100-SXM", "global_batch": 8, "seq_len": 512},
    ),
    "fit": ("fit", {"model": "llama-3.1-8b", "gpu": "RTX3090"}),
    "export": (
        "export_plan",
        {"target": "megatron", "model": "llama-2-7b", "cluster": "1x8xH100-SXM", "global_batch": 64, "seq_len": 4096},
    ),
    "refused": (
        "export_plan",
        {"target": "torchtitan", "model": "opt-350m", "cluster": "1x8xH100-SXM", "global_batch": 64, "seq_len": 1024},
    ),
    "slow": (
        "diagnose",
        {
            "model": "llama-2-7b",
            "cluster": "2x8xH100-SXM",
            "global_batch": 64,
            "seq_len": 4096,
            "pins": ["tp=1"],
            "step_seconds": 20.0,
            "log": "node0: NCCL INFO NET/IB : No device found.",
        },
    ),
    "catalogue": ("catalogue", {}),
}


async def asked() -> tuple[list[str], dict[str, Any]]:
    """Return the tools, and the structured answer to each call, from one server."""
    parameters = StdioServerParameters(command=sys.executable, args=["-m", "shardwright", "mcp"], env=dict(os.environ))
    async with stdio_client(parameters) as (reading, writing), ClientSession(reading, writing) as session:
        await session.initialize()
        tools = (await session.list_tools()).tools
        assert all(tool.description and tool.input_schema["properties"] is not None for tool in tools)
        answers = {}
        for name, (tool, arguments) in CALLS.items():
            answers[name] = (await session.call_tool(tool, arguments)).structured_content
        return [tool.name for tool in tools], answers


def test_an_assistant_plans_sizes_and_exports() -> None:
    tools, answers = asyncio.run(asked())
    assert set(tools) == {"fit", "plan_training", "shop", "export_plan", "compare", "diagnose", "catalogue"}
    assert answers["plan"]["best"]["iteration_seconds"] > 0 and answers["plan"]["next"]
    assert "no-such-model" in answers["unknown"]["errors"][0]["message"]
    assert answers["fit"]["answer"].startswith("Fits")
    assert "--tensor-model-parallel-size" in answers["export"]["files"]["run.sh"]
    assert any("registry" in each["message"] for each in answers["refused"]["errors"])
    assert answers["slow"]["verdict"] == "slower" and answers["slow"]["causes"][0]["name"] == "slow-network"
    assert "llama-3.1-8b" in answers["catalogue"]["models"]
