"""What of a plan, which models and which adapters `shardwright train` does not run.

A plan that is priced for it must not say any of this. Of one that is priced for another trainer it runs what it can:
overlap, say, is then its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwright.errors import Problem
from shardwright.plans.cuts import Cut, misfits, parts, whole_sequences
from shardwright.plans.plan import Plan, stages_at
from shardwright.rows import holding
from shardwright.spec.adapter import TARGETS, Adapter, Target, adapted, matrices
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.forward_pass import PLAIN
from shardwright.spec.job import Job
from shardwright.spec.layer import Layer, vectors_beside
from shardwright.spec.mixers import GatedDelta, Lightning, Mamba, Mamba2, ShortConvolution
from shardwright.spec.model import Model
from shardwright.spec.read.families import FAMILIES, TRAINED
from shardwright.spec.read.forward_pass import ROWS

MIXERS = (Mamba, Mamba2, GatedDelta, Lightning, ShortConvolution)
OWN_OPTIMIZERS = ("adam", "adam8bit", "muon", "sgd")
ACTIVATIONS = ("silu", "swish", "swiglu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2")
HEADS: tuple[Target, ...] = ("q_proj", "k_proj", "v_proj")
GATED: tuple[Target, ...] = ("gate_proj", "up_proj")
# Families of which a tensor of Hugging Face's holds several matrices, beside which PEFT has one adapter.
TOGETHER: Mapping[str, tuple[Target, ...]] = {
    **dict.fromkeys(("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "mpt", "openai-gpt"), HEADS),
    **dict.fromkeys(("glm", "glm4", "granitemoe", "granitemoehybrid", "granitemoeshared", "zamba2"), GATED),
    "persimmon": HEADS,
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), ("q_proj",)),
    "phi3": (*HEADS, *GATED),
}
INSTEAD = {  # of what takes parts of some sizes alone
    "experts": "another framework", "fp8": "bf16",
    "nf4": "an adapter beside weights in 16 bits, or `framework=fsdp`, whose trainers run it",
}  # fmt: skip
OTHERS = "docs/model-families.md lists what it runs; `shardwright spmd train` runs any module"
FOR_TRL = "plan for TRL: framework=fsdp or deepspeed"
AGAIN = "make the plan again of the model's config.json"


def own_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what a plan that is priced for `shardwright train` says and `train` does not do."""
    if plan.job.framework != OWN:
        return
    message = f"{OWN} does not overlap tensor-parallel communication with products forward"
    yield from holding(
        (plan.overlap.tensor_parallel, Problem("overlap.tensor_parallel", message, "write false")),
        (not plan.flash_attention, Problem("flash_attention", f"{OWN} has fused attention alone", "write true")),
    )
    yield from own_job_problems(plan.model, plan.job)
    yield from untrainable_stages(plan)


def _schedule(plan: Plan) -> Iterator[Problem]:
    sharding = plan.optimizer.sharding
    rows = (
        (plan.job.precision == "fp8", "in fp8", "use 1f1b or interleaved, or bf16"),
        (sharding in ("zero2", "zero3"), f"beside {sharding}, whose gradients go at once", "use zero1, or 1f1b"),
    )
    for wrong, words, hint in rows if plan.schedule.weights_apart else ():
        if wrong:
            yield Problem("schedule.kind", f"zero-bubble cannot be run {words}", hint)


def own_job_problems(model: Model, job: Job) -> Iterator[Problem]:
    """Yield what a job that is for `shardwright train` says and `train` does not do, beside options and recipes."""
    if job.framework != OWN:
        return
    yield from untrainable_adapters(model, job)
    other = job.optimizer not in (*OWN_OPTIMIZERS, "none")
    parted = job.document_tokens is not None and any(kind.mixer for kind in model.kinds)
    rows = (
        (other, "optimizer", f"{job.optimizer} is not there in {OWN}", f"one of {', '.join(OWN_OPTIMIZERS)}"),
        (
            job.optimizer == "muon" and model.sharing,
            "optimizer",
            "muon cannot be run on blocks that layers share",
            "use adam",
        ),
        (job.fp8_storage, "fp8_storage", f"keeping weights in 8 bits alone is not there in {OWN}", "leave it out"),
        (job.fused_loss, "fused_loss", f"a loss that holds no logits is not there in {OWN}", "leave it out"),
        (
            job.optimizer == "none",
            "optimizer",
            f"a step without an update is not there in {OWN}",
            "name an optimizer",
        ),
        (job.preference is not None, "preference", f"a loss over preferences is not there in {OWN}", FOR_TRL),
        (
            parted,
            "document_tokens",
            f"a state that begins anew with each document is not there in {OWN}",
            "leave it out",
        ),
    )
    yield from (Problem(f"job.{name}", message, hint) for wrong, name, message, hint in rows if wrong)


def untrainable_stages(plan: Plan) -> Iterator[Problem]:
    """Yield which degrees of a legal plan `shardwright train` cannot run."""
    yield from _degrees(plan)
    yield from _sizes(plan)
    yield from _schedule(plan)


def _degrees(plan: Plan) -> Iterator[Problem]:
    moe = plan.model.has_experts
    for place, replica, stage in stages_at(plan):
        if stage.context_parallel != replica.stages[0].context_parallel:
            message = f"{stage.context_parallel}, other than in the first stage, cannot be run"
            yield Problem(f"{place}.context_parallel", message, "use the same in all stages of a replica")
        degrees = {1, stage.tensor_parallel} if plan.sequence_parallel else {stage.tensor_parallel}
        if moe and stage.expert_tensor_parallel not in degrees:
            message = f"{stage.expert_tensor_parallel} cannot be run"
            hint = f"use {stage.tensor_parallel}, or 1 with sequence_parallel"
            yield Problem(f"{place}.expert_tensor_parallel", message, hint)


def _sizes(plan: Plan) -> Iterator[Problem]:
    for of, what, size, multiple in misfits(plan, OWN):
        message = f"{of} cannot be run: a rank has {size} of {what}, no multiple of {multiple}"
        yield Problem("model", message, f"use other degrees, or {INSTEAD[of]}")


def untrainable_sizes(model: Model, job: Job) -> Iterator[Problem]:
    """Yield which sizes of a model no degrees cut so that `shardwright train` runs a job that is for it."""
    for part in parts(model, job, Cut(1, 1, 1, 1)) if job.framework == OWN else ():
        if part.whole % part.multiple:
            message = f"{part.of} cannot be run in {OWN}: {part.what} is {part.whole}, no multiple of {part.multiple}"
            yield Problem("model", message, f"use {INSTEAD[part.of]}")


def untrainable_model(model: Model) -> Iterator[Problem]:
    """Yield why `shardwright train` does not run a model under any plan."""
    computed = model.computed
    unlike = tuple(dict.fromkeys(words for kind in model.kinds for words in _unlike(kind)))
    if unlike:
        yield from (Problem("model", f"{words} (family {model.family}) cannot be run", OTHERS) for words in unlike)
        return
    sharing = [kind for kind in model.kinds if kind.shared]
    lacking = {
        f"models of family {model.family}": model.family in FAMILIES and model.family not in TRAINED,
        "a model whose forward pass is guessed": bool(model.guesses),
        f"what is particular to the model ({model.particular})": bool(model.particular) and model.forward_pass is None,
        f"the activation {model.activation}": model.activation not in ACTIVATIONS,
        "an embedding narrower than the model": model.embedding_width is not None,
        **{tower.noun: True for tower in model.towers},
        "attention to what an encoder gives": any(kind.cross is not None for kind in model.kinds),
        "multi-token prediction": model.mtp_layers > 0,
        "a head of scores": model.scores is not None,
        "masked tokens without a token for them": not model.causal and computed.mask_token is None,
        "layers with another number of norms than their places": not all(_placed(model, kind) for kind in model.kinds),
        "weights that no block has": any(_unplaced(model, kind) for kind in model.kinds),
        "layers that differ in what they share": len({(kind.attention, kind.mlp) for kind in sharing}) > 1,
        "norms of shared blocks that are not before them": bool(sharing)
        and (model.parallel_block or computed.norms != "before"),
        "norms after the blocks of a parallel block": model.parallel_block and computed.norms != "before",
        "norms of queries and keys in latent attention": any(
            attention.latent and attention.qk_norm for attention in model.attentions
        ),
        "layers that differ in heads": len({(a.heads, a.kv_heads, a.head_dim) for a in model.attentions}) > 1,
        "capped logits of a model with a bias on them and a scale": model.head_bias and computed.logit_scale != 1.0,
    }
    hints = {
        "multi-token prediction": "write num_nextn_predict_layers 0 in config.json and plan again",
        "masked tokens without a token for them": "write mask_token_id in config.json (103 in BERT) and plan again",
    }
    for what, there in lacking.items():
        if there:
            yield Problem("model", f"{what} cannot be run", hints.get(what, OTHERS))
    for what in computed.unknown:
        yield Problem("model.forward_pass", f"config.json says {what}: it cannot be run", OTHERS)
    if model.forward_pass is None and model.family in ROWS:
        yield Problem("model", f"nothing in the plan tells the forward pass of {model.family}", AGAIN)


def untrainable_adapters(model: Model, job: Job) -> Iterator[Problem]:
    """Yield which adapters of a job `shardwright train` does not run beside the weights of a model."""
    adapter = job.adapter
    if adapter is None:
        return
    plain = f"{'dora' if adapter.dora else 'lora'}:{adapter.rank}"
    if model.sharing:
        message = f"{adapter.name} cannot be run beside blocks that layers share"
        hint = "train all weights: leave `adapter` out, or use `framework=fsdp`, whose trainers run it"
        yield Problem("job.adapter", message, hint)
        return
    mixers = any(kind.mixer for kind in model.kinds)
    elsewhere = "or `framework=fsdp`, whose trainers run it"
    in_8_bits = f"{adapter.name} with frozen weights in 8 bits cannot be run"
    beside_mixers = f"{adapter.name} cannot be run beside layers without attention"
    yield from holding(
        (adapter.frozen == "int8", Problem("job.adapter", in_8_bits, f"use q{plain} or {plain}, {elsewhere}")),
        (adapter.frozen == "nf4" and mixers, Problem("job.adapter", beside_mixers, f"use {plain}, {elsewhere}")),
        (
            not any(adapted(model, kind, adapter) for kind in model.kinds),
            Problem("job.adapter.targets", "are no matrix of the model", f"one of {', '.join(TARGETS)}"),
        ),
    )
    together = [target for target in TOGETHER.get(model.family, ()) if target in adapter.targets]
    joined = f"{', '.join(together)} of {model.family} are one matrix in its files: adapters of theirs cannot be run"
    barred: dict[str, set[Target]] = {
        "adapters beside routed experts cannot be run": {"experts"} if model.has_experts else set(),
        "adapters beside the projections of layers without attention cannot be run": (
            {"q_proj", "o_proj"} if mixers else set()
        ),
        joined: set(together),
    }
    for message, targets in barred.items():
        if targets & set(adapter.targets):
            named = "+".join(_run_beside(model, adapter, set().union(*barred.values(), TOGETHER.get(model.family, ()))))
            hint = f"leave them out: `adapter_targets={named}`" if named else "train all weights: leave `adapter` out"
            yield Problem("job.adapter.targets", message, hint)


def _run_beside(model: Model, adapter: Adapter, barred: set[Target]) -> list[Target]:
    """Return the targets of an adapter that are not barred, or else all that the model has."""
    there = {matrix.target for kind in model.kinds for matrix in matrices(model, kind)} - barred
    having = [target for target in TARGETS if target in there]
    return [target for target in having if target in adapter.targets] or having


def untrainable_parts(plan: Plan) -> Iterator[Problem]:
    """Yield which models are not run under the degrees of a plan."""
    if any(stage.context_parallel > 1 for stage in plan.stages):
        for what in whole_sequences(plan.model, OWN):
            yield Problem("replicas", f"{what} cannot be run in parts of sequences", "use context_parallel 1")
    widest = max(stage.expert_tensor_parallel for stage in plan.stages)
    if plan.model.computed.expert_bias and plan.model.hidden % widest:
        message = f"biases of experts cannot be run: {widest} does not divide hidden {plan.model.hidden}"
        yield Problem("replicas", message, "use expert_tensor_parallel 1")


def _unlike(layer: Layer) -> Iterator[str]:
    """Yield what a block has, or lacks, that no block of the runtime does."""
    attention, mixer = layer.attention, layer.mixer
    there = {
        mixer.words if mixer else "": mixer is not None and not isinstance(mixer, MIXERS),
        "an empty block": not layer.mixes and not layer.feeds,
        "sparse attention with an indexer": attention is not None and attention.sparse is not None,
        "keys or values of another projection or layer": attention is not None and attention.reused is not None,
        "a norm of values": attention is not None and attention.value_norm,
        "a token's own embedding for each layer": layer.embedded is not None,
        "blocks that add a learned multiple": bool(layer.scaled),
        "several residual streams": layer.streams is not None,
        "attention to the embedding outside a shared block": attention is not None
        and bool(attention.doubled) != (layer.shared is not None),
        "a shared block of other parts": layer.shared is not None and _of_other_parts(layer),
        "norms for each head of Mamba": isinstance(mixer, Mamba)
        and bool(mixer.heads)
        and (mixer.normed or mixer.norm_epsilon is not None),
        "gates that are cut off": layer.mlp is not None and layer.mlp.cut,
    }
    yield from (words for words, is_there in there.items() if is_there)


def _of_other_parts(layer: Layer) -> bool:
    parts = (layer.attention, layer.mlp, layer.mixer)
    return None in parts or layer.latent is not None or layer.moe is not None


def _placed(model: Model, layer: Layer) -> bool:
    """Return whether a layer has as many norms over the hidden width as the model's places take."""
    if model.parallel_block:
        return layer.norms in (1, 2) and layer.mixes and layer.feeds
    if layer.shared is not None:
        return layer.norms == 4
    return layer.norms == layer.sublayers * (2 if model.computed.placement(layer) == "both" else 1)


def _unplaced(model: Model, layer: Layer) -> bool:
    """Return whether a layer has more weights beside matrices and norms than blocks have."""
    computed = model.computed
    wide, bias = computed.query_key_norm != PLAIN.query_key_norm, computed.expert_bias
    known = vectors_beside(
        layer.attention, layer.moe, model.hidden, sinks=computed.sinks, wide_norms=wide, expert_bias=bias
    )
    return (layer.vector_parameters or 0) != known
