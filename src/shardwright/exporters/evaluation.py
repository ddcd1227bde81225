"""The line of an exported script that tells `evaluate` and `diagnose` what its target has no word for: on which
machines it starts and, where a user's own script loads them, the model and the length of samples.
"""

from __future__ import annotations

import re
import shlex

from shardwright.errors import SpecError
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.spec.cluster import Cluster, NodePool, kind_of
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.presets import find_preset, preset_model

COMMAND = "shardwright evaluate --launch"
LINE = re.compile(rf"^# {COMMAND} \S+(?P<options>(?: --[a-z-]+ \S+)*)$", re.MULTILINE)
WITHOUT_MODEL = ("accelerate", "deepspeed")  # whose files leave the model and its samples to the user's script


@record
class Evaluation:
    """What the line says: a cluster in short form, a preset and tokens of a sample; None for what it does not."""

    cluster: str | None = None
    model: str | None = None
    seq_len: int | None = None


def line_of(plan: Plan, target: str, file: str) -> str:
    """Return the line for a file of a target's export, "" where there is nothing to say. A cluster or model that is no
    short form or preset is left out, for the user to say."""
    options = {"--cluster": _short_form(plan.cluster)}
    if target in WITHOUT_MODEL:
        preset = find_preset(plan.model.name)
        known = preset is not None and preset_model(preset) == plan.model
        options |= {"--model": preset if known else None, "--seq-len": str(plan.job.seq_len)}
    words = "".join(f" {name} {shlex.quote(value)}" for name, value in options.items() if value is not None)
    return f"# {COMMAND} {file}{words}" if words else ""


def evaluation_of(text: str) -> Evaluation:
    """Return what the line of a file says, nothing where it has none."""
    line = LINE.search(text)
    if line is None:
        return Evaluation()
    words = shlex.split(line["options"])
    said = dict(zip(words[::2], words[1::2], strict=True))
    length = said.get("--seq-len", "")
    return Evaluation(
        cluster=said.get("--cluster"), model=said.get("--model"), seq_len=int(length) if length.isdecimal() else None
    )


def _short_form(cluster: Cluster) -> str | None:
    """Return the short form of a cluster, None for one that has more to say."""
    text = "+".join(map(_group, cluster.pools))
    try:
        return text if load_cluster(text) == cluster else None
    except SpecError:
        return None


def _group(pool: NodePool) -> str:
    return f"{pool.nodes}x{pool.gpus_per_node}x{kind_of(pool.gpu.name)}"
