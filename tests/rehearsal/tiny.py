"""Plans of a tiny model, each with a pipeline or without."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import replace

import pytest

import shardwright
from shardwright.plans.plan import Plan
from shardwright.search.space.axes import parse_pins
from shardwright.spec.layer import Mlp
from shardwright.spec.model import Model

SEQUENCE = 256


def tiny_model(layers: int = 4) -> Model:
    """Return Llama 3 with grouped queries in small."""
    large = shardwright.load_model("llama-3-8b")
    (kind,) = large.kinds
    attention = replace(kind.self_attention, heads=8, kv_heads=2, head_dim=16, value_head_dim=16)
    layer = replace(kind, attention=attention, mlp=Mlp(width=512, gated=True))
    return replace(large, name="tiny", hidden=128, vocab=4096, layers=(layer,) * layers)


def tiny_plan(framework: str, pins: str, *, batch: int = 8, model: Model | None = None) -> Plan:
    """Return the best plan of a framework on eight GPUs under some pins."""
    job = shardwright.make_job(global_batch=batch, seq_len=SEQUENCE, framework=framework)
    cluster = shardwright.load_cluster("1x8xH100-SXM")
    return shardwright.plan(model or tiny_model(), cluster, job, space=parse_pins(pins.split())).best


def require_guard() -> None:
    """Skip the test where fake devices cannot be made."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    compiler = os.environ.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"]
    if not any(map(shutil.which, compiler)):
        pytest.skip("there is no C++ compiler to make the device guard with (apt-get install g++)")
