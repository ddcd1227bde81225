"""Exports put through Megatron-LM's own code, by the interpreter that megatron_venv.sh makes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.targets.megatron_rules import broken_rules

from shardwright.exporters.megatron.export import MegatronExport, to_megatron
from shardwright.exporters.megatron.limits import least_capability, pools_of
from shardwright.plans.plan import Plan

PYTHON = os.environ.get("SHARDWRIGHT_MEGATRON_PYTHON", "")
SOURCES = Path(PYTHON).parent.parent / "sources"
CHECK = Path(__file__).parent / "check_megatron.py"
TIME_LIMIT_SECONDS = 900
AMD_CAPABILITY = (9, 4)  # what PyTorch says of an MI300X


def case_of(name: str, plan: Plan, export: MegatronExport | None = None) -> dict[str, Any]:
    """Return a plan's export as the check takes it, for the least of its GPUs."""
    export = export or to_megatron(plan)
    number = least_capability(plan)
    vendor = pools_of(plan)[0].gpu.vendor
    capability = AMD_CAPABILITY if number == float("inf") else (int(number), round(number % 1 * 10))
    return {
        "name": name,
        "arguments": export.arguments,
        "world_size": plan.gpus,
        "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": None} | dict(export.environment),
        "capability": capability,
        "vendor": vendor,
        "priced_fused": plan.flash_attention,
    }


def require_megatron() -> None:
    """Skip the test where there is no Megatron-LM."""
    if not PYTHON:
        pytest.skip(
            "SHARDWRIGHT_MEGATRON_PYTHON names no interpreter with Megatron-LM (tests/targets/megatron_venv.sh)"
        )


def asked(text: str, *arguments: str) -> Any:
    """Return what the check answers to a text."""
    require_megatron()
    command = [PYTHON, str(CHECK), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=TIME_LIMIT_SECONDS)
    if "No module named" in done.stderr and not done.stdout:
        pytest.skip(f"{PYTHON} cannot import Megatron-LM: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def checked(cases: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the results of cases by name, each with the run-time rules that it breaks (`broken`)."""
    results = {result["name"]: result for result in asked(json.dumps(cases))}
    for case in cases:
        found = results[case["name"]]
        if "facts" in found:
            known = ("environment", "vendor", "priced_fused")
            more = {name: case[name] for name in known} | {"capability": tuple(case["capability"])}
            found["broken"] = broken_rules(found["facts"] | more)
    return results
