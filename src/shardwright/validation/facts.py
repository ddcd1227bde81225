"""Single facts of a published run: its model, sizes, GPU, job, software and layer split, and what is taken where it is
silent. The model is that of its printed dimensions, or the preset of that name.

`data/defaults.csv` has what a framework does by default with a model, in a precision, on a GPU (architecture and name),
each a pattern that is searched in its name, from a release on (a run that says no release may be of the last); the
first row that applies counts. Where the row has another value too, the default is in doubt, and the run is forecast
under both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import cast

from shardwright.errors import bad
from shardwright.files import shipped_table
from shardwright.records import record
from shardwright.spec.adapter import ATTENTION, LINEAR, Adapter
from shardwright.spec.catalog.frameworks import MEGATRON, figures, framework_rows
from shardwright.spec.cluster import Assumption
from shardwright.spec.job import Fp8Recipe, Framework, Job
from shardwright.spec.layer import Attention, Layer, Mlp, Moe
from shardwright.spec.model import Model
from shardwright.spec.options import CudaGraph, Dispatcher, GradReduce, Options
from shardwright.spec.read.job import make_job
from shardwright.spec.read.presets import find_preset, preset_model, preset_names
from shardwright.units import GIGA
from shardwright.validation.runs import PublishedRun

PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "tf32": "fp32", "fp8": "fp8", "mxfp8": "fp8"}
GRADIENTS: Mapping[float, GradReduce] = {2.0: "bf16", 4.0: "fp32"}  # by their bytes on the way

RATE_SLACK = 0.03  # by which a rate times a time may differ from the tokens of an iteration: both are rounded
MEMORY_SLACK = 1.02  # of GB over GiB and of rounding


@record(kw_only=False)
class Skip:
    """Why a run is not predicted: the kind of the reason, and the reason in words."""

    kind: str
    words: str


class SkippedRunError(ValueError):
    """A run that cannot be predicted; `skip` says why."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.skip = Skip(kind, words)


def whole(run: PublishedRun, name: str, default: int | None = None) -> int:
    """Return a whole number of a run. Raises SkippedRunError where it is not published and has no default."""
    value = getattr(run, name)
    if value is None:
        if default is None:
            raise SkippedRunError("unpublished", f"{name} is not published")
        return default
    if value != int(value) or value < 1:
        raise SkippedRunError("not_whole", f"{name} is {value:g}, not a whole number from 1")
    return int(value)


def gpu_name(published: str, memory_gb: float | None) -> tuple[str, float | None]:
    """Return the name by which the catalogue may know a GPU, and its memory in GiB where name or run say it."""
    name = re.split(r"[\s(?]", published.strip())[0]
    stated = re.search(r"-?([0-9]{2,3})\s?GB", name, re.I)
    memory = float(stated[1]) if stated else memory_gb
    base = re.sub(r"-?[0-9]{2,3}\s?GB.*$", "", name, flags=re.I)
    if base.startswith("A100") and memory in (40, 80):
        base = f"{base}-{memory:g}"
    elif base.startswith("A100"):
        base = f"{base}-80"
    elif base.startswith("V100") and memory == 16:
        base = f"{base}-16"
    return base, memory


def job_of(run: PublishedRun, framework: Framework, architecture: str, guesses: list[Assumption]) -> Job:
    precision = PRECISIONS.get(run.precision)
    if precision is None:
        precision = "bf16"
        guesses.append(Assumption("precision", "bf16"))
    job = make_job(
        global_batch=whole(run, "global_batch"),
        seq_len=whole(run, "seq_len"),
        precision=precision,
        framework=framework,
        fp8_recipe=_recipe(run),
        optimizer="none" if run.kind == "fwd+bwd" else "adam",
    )
    recipes = framework == MEGATRON and re.search("nemo|bridge", run.framework.casefold()) is not None
    stored = recipes if run.gather_bytes is None else run.gather_bytes == 1
    graph, hidden = (said(run, column, architecture).value for column in ("cuda_graph", "a2a_overlap"))
    options = Options(
        grad_reduce=GRADIENTS.get(run.grad_bytes or 0.0),
        dispatcher=cast("Dispatcher | None", run.dispatcher or None),
        cuda_graph=cast("CudaGraph | None", graph or None),
        exchange_overlap="batches" if hidden == "true" else None,
    )
    return replace(
        job,
        adapter=_adapter(run, framework),
        fp8_storage=precision == "fp8" and stored,
        fused_loss=run.noted.fused_loss,
        document_tokens=run.document_tokens,
        options=options,
    )


def _adapter(run: PublishedRun, framework: Framework) -> Adapter | None:
    """Return the adapters of a run. Rank and matrices are not among what is published: NVIDIA's recipes for such runs
    have rank 16 beside queries, keys and values (Megatron-Bridge: `cfg.peft.target_modules = ["linear_qkv"]`)."""
    if run.kind not in ("lora", "peft"):
        return None
    if run.noted.attention_adapters:
        return Adapter(targets=ATTENTION)
    return Adapter(targets=ATTENTION[:3] if framework == MEGATRON else LINEAR)


def _recipe(run: PublishedRun) -> Fp8Recipe | None:
    """Return how an fp8 run scales its numbers, where it says so. Scales per row cost like those per block."""
    return "mxfp8" if run.precision == "mxfp8" else cast("Fp8Recipe | None", run.fp8_recipe or None)


def first_and_last(layers: int, stages: int, head: float) -> tuple[int, int]:
    """Return the layers of the first and the last of `stages` virtual stages. They are even, unless the output
    projection counts as `head` layers: then each stage in turn takes layers until it has more than its share, as in
    huggingface/nanotron@01de8d9:src/nanotron/models/base.py."""
    if stages == 1:
        return layers, layers
    share = (layers + head) / stages
    first = min(int(share) + 1, layers) if head else layers // stages
    if stages == 2:
        return first, layers - first
    before_last = int((stages - 1) * share) + 1
    return first, max(layers - before_last, 0) if head else layers // stages


@record
class Habits:
    """Defaults of a framework: whether attention is fused, what is overlapped and sharded, whether stages of a
    pipeline are balanced by their weights, whether users recompute activations as soon as memory is short (else they
    look for another layout first), and then `whole_layers` or nothing."""

    framework: Framework
    flash: bool
    sequence_parallel: bool
    overlap_tp: bool
    overlap_grad: bool
    overlap_param: bool
    sharding: int
    balanced: bool
    recomputes: bool
    whole_layers: bool


def framework_of(run: PublishedRun, guesses: list[Assumption]) -> Framework:
    """Return the framework of a run: the first whose pattern is in the name. Megatron in fp16 is from before bf16 and
    FlashAttention, torchtitan without compilation is plain FSDP, and so is taken what is unknown."""
    name = run.framework.casefold()
    for framework, row in framework_rows().items():
        if re.search(row["pattern"], name):
            if framework == "megatron" and run.precision == "fp16":
                return "megatron-2021"
            uncompiled = framework == "torchtitan" and run.compiled == "false"
            return "fsdp" if uncompiled else framework
    taken: Framework = "fsdp" if name else "megatron"
    guesses.append(Assumption("framework", f"{taken}"))
    return taken


@cache
def habits_of(framework: Framework) -> Habits:
    return figures(Habits, framework_rows()[framework])


@record
class Default:
    """What is taken of a column, and what else it may have been ("": nothing else)."""

    value: str = ""
    other: str = ""


def said(run: PublishedRun, column: str, architecture: str) -> Default:
    """Return what a run on GPUs of an architecture says in a column, else the default."""
    words = str(getattr(run, column) or "")
    if words:
        return Default(value=words)
    names = {name: getattr(run, name) for name in ("framework", "model", "precision")}
    return _default(column, run.version, **names, gpu=f"{architecture} {run.gpu}")


@cache
def _default(column: str, version: str, **names: str) -> Default:
    for row in shipped_table("shardwright.validation", "defaults.csv"):
        alike = all(re.search(row[name], words, re.IGNORECASE) for name, words in names.items())
        if row["column"] == column and alike and (not version or _release(row["version"]) <= _release(version)):
            return Default(value=row["value"], other=row["other"])
    return Default()


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a release, by which it comes before others."""
    return tuple(map(int, re.findall("[0-9]+", version)))


def contradictions(run: PublishedRun, *, experts: bool, memory_bytes: float, ideal_seconds: float) -> Iterator[str]:
    """Yield what a run says against itself. `memory_bytes` a GPU has, `ideal_seconds` the model's arithmetic takes at
    the peak of all GPUs in the precision of the run."""
    seconds = run.seconds
    if seconds and ideal_seconds > seconds:
        yield f"{seconds:.4g} s is less than the {ideal_seconds:.4g} s of its arithmetic at the peak of its GPUs"
    rate, batch = run.measured_tokens_per_s_per_gpu, (run.global_batch or 0.0) * (run.seq_len or 0.0)
    if run.measured_iter_time_s and rate and batch:
        counted = rate * (run.n_gpus or 0.0) * run.measured_iter_time_s
        if abs(counted / batch - 1.0) > RATE_SLACK:
            yield f"its tokens a second times its seconds are {counted:.4g} tokens, its batch has {batch:.4g}"
    if (run.measured_mem_gb or 0.0) * GIGA > MEMORY_SLACK * memory_bytes:
        yield f"{run.measured_mem_gb:g} GB are more than the {memory_bytes / GIGA:.4g} GB of its GPU"
    if run.dispatcher == "flex" and run.ep == 1 and experts and (run.n_gpus or 0.0) > 1:
        yield "ep is 1, but DeepEP and HybridEP are for experts on several GPUs"
    if (run.n_experts or 0.0) > 1 and not experts:
        yield "it has experts, but no top_k"


VOCAB = 51200  # of GPT-2's tokenizer, padded; the usual one of runs that do not print theirs
NAMELESS = "without a name"
LARGEST = 1_000_000  # of a dimension that is believed
UNGATED = ("gpt", "mpt", "opt", "bert", "nemotron", "bloom", "falcon", "t5")


def model_of(run: PublishedRun, guesses: list[Assumption]) -> Model:
    """Return the model of a run. A preset counts if its hidden size and layers are those of the run (a run of fewer
    layers, a proxy, keeps the preset's first ones). Raises SpecError where neither tells the dimensions."""
    experts = int(run.n_experts) if run.n_experts and run.n_experts > 1 else 0
    return _preset(run) or _dense_or_moe(run, guesses, experts=experts)


def _preset(run: PublishedRun) -> Model | None:
    """Return the preset that fits name and printed dimensions, cut to the run's layers."""
    plain = re.sub(r"\(.*\)|proxy|\[.*\]", "", run.model).strip()
    plain = re.sub(r"^(deepseek)(v[0-9])", r"\1-\2", plain, flags=re.I)
    name = find_preset(plain)
    model = preset_model(name) if name else None
    if model is None or not _agrees(run, model):
        model = _by_dimensions(run)
    if model is None or int(run.layers or 0) > len(model.layers):
        return None
    layers = int(run.layers or len(model.layers))
    kept = _shortened(model, layers) if run.noted.first_dense else model.layers[:layers]
    predicted = model.mtp_layers if layers == len(model.layers) else 0
    return replace(model, layers=kept, vocab=int(run.vocab or model.vocab), mtp_layers=predicted)


def _shortened(model: Model, layers: int) -> tuple[Layer, ...]:
    """Return `layers` layers of which one is dense and the others are like the model's last."""
    return (model.layers[0], *([model.layers[-1]] * (layers - 1)))


def _agrees(run: PublishedRun, model: Model) -> bool:
    attention = model.attention
    checks = (
        (run.hidden, model.hidden),
        (run.heads, attention.heads if attention else None),
        (run.kv_heads, attention.kv_heads if attention and attention.latent is None else None),
        (run.n_experts or None, max((kind.moe.experts for kind in model.kinds if kind.moe), default=None)),
        (run.ffn, _width(model)),
    )
    return all(mine is None or theirs is None or mine == theirs for mine, theirs in checks)


def _width(model: Model) -> int | None:
    layers = [kind for kind in reversed(model.layers) if kind.moe or kind.mlp]
    layer = next(iter(layers), model.layers[-1])
    return layer.moe.expert_width if layer.moe else layer.mlp.width if layer.mlp else None


@lru_cache
def _moe_presets() -> tuple[Model, ...]:
    return tuple(model for model in map(preset_model, preset_names()) if model.has_experts)


def _by_dimensions(run: PublishedRun) -> Model | None:
    """Return the mixture-of-experts preset with the run's dimensions: what a run does not print of experts (shared
    ones, dense first layers, latent attention) is known only from there."""
    if not run.n_experts or not run.hidden or not run.ffn:
        return None
    return next((model for model in _moe_presets() if _agrees(run, model)), None)


def _dense_or_moe(run: PublishedRun, guesses: list[Assumption], *, experts: int) -> Model:
    sizes = {name: int(getattr(run, name) or 0) for name in ("layers", "hidden", "heads")}
    missing = [name for name, size in sizes.items() if not 0 < size < LARGEST]
    if missing:
        lacking = f"is no preset, and {', '.join(missing)} not published"
        raise bad(f"model {run.model or NAMELESS}", lacking, "give the dimensions")
    layers, hidden, heads = sizes.values()
    if hidden < heads:
        raise bad(f"model {run.model}", f"hidden size {hidden} is less than the heads, {heads}", "give the dimensions")
    width = int(run.ffn or 4 * hidden)
    if run.vocab is None:
        guesses.append(Assumption("vocabulary", f"{VOCAB}"))
    attention = Attention(
        heads=heads, kv_heads=int(run.kv_heads or heads), head_dim=hidden // heads, value_head_dim=hidden // heads
    )
    old = run.model.casefold().lstrip("[(").startswith(UNGATED)
    shapes = [
        _assembled(run, attention, layers, hidden, width, experts, gated=gated, tied=tied)
        for gated in ((False, True) if old or width == 4 * hidden else (True, False))
        for tied in ((True, False) if old else (False, True))
    ]
    if run.n_params:
        return min(shapes, key=lambda model: abs(model.parameters - (run.n_params or 0.0)))
    return shapes[0]


def _assembled(
    run: PublishedRun,
    attention: Attention,
    layers: int,
    hidden: int,
    width: int,
    experts: int,
    *,
    gated: bool,
    tied: bool,
) -> Model:
    moe = Moe(experts=experts, top_k=int(run.top_k or 2), expert_width=width, gated=gated) if experts else None
    layer = Layer(attention=attention, mlp=None if moe else Mlp(width=width, gated=gated), moe=moe)
    return Model(
        name=run.model or "unnamed",
        family="published",
        hidden=hidden,
        vocab=int(run.vocab or VOCAB),
        layers=(layer,) * layers,
        norm="rmsnorm" if gated else "layernorm",
        position="rope" if gated else "learned",
        tied_embeddings=tied,
        dropout=not gated and "gpt" in run.model.casefold(),
        activation="silu" if gated else "gelu",
    )
