"""The comments of an exported script that tell `evaluate` and `diagnose` what its target has no word for: on which
machines it starts and, where a user's own script loads them, the model and the length of samples.

The first is the command that reads the script back. A cluster or a model that no word of a command line names, as that
of a file, stands below it as JSON, in the form of a plan file; on several GPU types, how many of each run.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable

from shardwright.errors import SpecError
from shardwright.exporters.megatron.model import described
from shardwright.plans.codec import encode
from shardwright.plans.document import model_document, part_of_plan
from shardwright.plans.placement import machine_sizes
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rows import holding, stated
from shardwright.spec.catalog.frameworks import MEGATRON, framework_has
from shardwright.spec.cluster import Cluster
from shardwright.spec.model import Model
from shardwright.spec.read.cluster import load_cluster, short_form
from shardwright.spec.read.presets import find_preset, preset_model
from shardwright.spec.text.reading import parse_json

COMMAND = "shardwright evaluate --launch"
LINE = re.compile(rf"^# {COMMAND} \S+(?P<options>(?: --[a-z-]+ \S+)*)$", re.MULTILINE)
WHOLE = re.compile(r"^# (?P<what>cluster|model): (?P<text>\{.*\})$", re.MULTILINE)
GPUS = re.compile(r"^# On (?P<gpus>\d{1,9} \S+(?: \+ \d{1,9} \S+)*)(?:, machines in this order)?\.$", re.MULTILINE)


@record
class Evaluation:
    """What the comments say: a cluster in short form or as JSON, a preset or a model as JSON, tokens of a sample, the
    loss over preferences; None for what they do not. `gpus` are how many of each type run."""

    cluster: str | None = None
    model: str | None = None
    seq_len: int | None = None
    preference: str | None = None
    gpus: tuple[tuple[str, int], ...] = ()


def lines_of(plan: Plan, file: str, framework: str) -> Iterable[str]:
    """Return the comments for a file of an export, which runs under a framework."""
    without = framework_has(framework, "leaves_model")
    apart = without or (framework == MEGATRON and not described(plan.model))
    cluster, model = _short_form(plan.cluster), _preset(plan.model) if apart else None
    options = {
        "--cluster": cluster,
        "--model": model,
        "--seq-len": str(plan.job.seq_len) if without else None,
        "--preference": None if plan.job.preference is None else plan.job.preference.name,
    }
    words = "".join(f" {name} {shlex.quote(value)}" for name, value in stated(options).items())
    mixed = len(plan.cluster.gpus_by_type) > 1 and framework != MEGATRON
    gpus = " + ".join(f"{count} {gpu}" for gpu, count in plan.gpus_by_type.items())
    order = ", machines in this order" if len(machine_sizes(plan)) > 1 else ""
    return holding(
        (True, f"# {COMMAND} {file}{words}"),
        (cluster is None, f"# cluster: {json.dumps(encode(plan.cluster, Cluster))}"),
        (apart and model is None, f"# model: {json.dumps(model_document(plan.model))}"),
        (mixed, f"# On {gpus}{order}."),
        (
            mixed and plan.cluster.mixed and plan.gpus < plan.cluster.gpus,
            "# CUDA_VISIBLE_DEVICES says which GPUs of a machine run.",
        ),
    )


def evaluation_of(text: str) -> Evaluation:
    """Return what the comments of a file say, nothing where it has none."""
    line = LINE.search(text)
    if line is None:
        return Evaluation()
    words = shlex.split(line["options"])
    said = dict(zip(words[::2], words[1::2], strict=True))
    whole = {match["what"]: match["text"] for match in WHOLE.finditer(text)}
    length, gpus = said.get("--seq-len", ""), GPUS.search(text)
    runs = [] if gpus is None else [word.split() for word in gpus["gpus"].split(" + ")]
    return Evaluation(
        cluster=said.get("--cluster", whole.get("cluster")),
        model=said.get("--model", whole.get("model")),
        seq_len=int(length) if length.isdecimal() else None,
        preference=said.get("--preference"),
        gpus=tuple((gpu, int(count)) for count, gpu in runs),
    )


def cluster_said(text: str) -> Cluster:
    """Return the cluster of a comment. Raises SpecError for none."""
    return part_of_plan(parse_json(text, "cluster"), "cluster") if is_whole(text) else load_cluster(text)


def model_said(text: str) -> Model:
    """Return the model of a comment. Raises SpecError for none."""
    return part_of_plan(parse_json(text, "model"), "model") if is_whole(text) else preset_model(text)


def is_whole(text: str) -> bool:
    """Whether a comment has all of a cluster or model, not its name."""
    return text.startswith("{")


def _preset(model: Model) -> str | None:
    preset = find_preset(model.name)
    return preset if preset is not None and preset_model(preset) == model else None


def _short_form(cluster: Cluster) -> str | None:
    """Return the short form of a cluster, None for one that has more to say."""
    text = short_form(cluster)
    try:
        return text if load_cluster(text) == cluster else None
    except SpecError:
        return None
