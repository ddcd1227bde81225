"""Plans questions and exports the answers by whatever release of shardwright is on the path: questions in, cases out, both
JSON. Run by `tests.targets.before` with an older one, so it imports nothing of the tests."""

from __future__ import annotations

import json
import sys
from typing import Any

import shardwright
from shardwright import SpecError, to_megatron
from shardwright.search.space.axes import parse_pins


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for the best plan of a question, or why there are none (`refused`)."""
    job = shardwright.make_job(
        global_batch=question["batch"],
        seq_len=question["seq_len"],
        precision=question["precision"],
        fp8_recipe=question["recipe"],
    )
    model, cluster = shardwright.load_model(question["model"]), shardwright.load_cluster(question["cluster"])
    space = parse_pins(question["pins"])
    try:
        best = shardwright.plan(model, cluster, job, space=space, exportable_to="megatron").best
        export = to_megatron(best)
    except (SpecError, LookupError) as error:
        return {"name": question["name"], "refused": str(error)}
    return {
        "name": question["name"],
        "arguments": list(export.arguments),
        "world_size": best.gpus,
        "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": None} | dict(export.environment),
        "gpus": list(best.gpus_by_type),
        "priced_fused": best.flash_attention,
    }


if __name__ == "__main__":
    json.dump([answer(question) for question in json.load(sys.stdin)], sys.stdout)
