"""A real layer profile for tests, an excerpt (the file says its source), and small ones made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXCERPT = Path(__file__).with_name("data") / "opt-350m-layers.json"


def real_document(names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the excerpt as JSON data, with GPUs named anew."""
    text = EXCERPT.read_text(encoding="utf-8")
    for old, new in (names or {}).items():
        text = text.replace(f'"{old}"', f'"{new}"')
    document: dict[str, Any] = json.loads(text)
    return document


def small_document(**more: Any) -> dict[str, Any]:
    """Return a profile of three layers on one type of GPU, in seconds and bytes that are easy to add up."""
    entry = {
        "gpu": "A100-SXM-40",
        "tensor_parallel": 1,
        "micro_batch": 1,
        "forward_seconds": [0.01, 0.1, 0.1, 0.1, 0.04],
        "backward_seconds": [0.0, 0.2, 0.2, 0.2, 0.05],
        "optimizer_seconds": [0.001, 0.002, 0.002, 0.002, 0.001],
        "weight_bytes": [4e6, 8e6, 8e6, 8e6, 4e6],
        "activation_bytes": [1e6, 5e6, 5e6, 5e6, 2e6],
        "output_bytes": [1e6, 1048576, 1048576, 1048576, 1e6],
    }
    return {"version": 1, "model": "three", "seq_len": 1024, "precision": "fp32", "entries": [entry | more]}
