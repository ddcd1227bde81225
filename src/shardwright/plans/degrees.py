"""Whether the parallel degrees of a plan divide what they split: heads, widths, experts, the sequence."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.errors import Problem
from shardwright.plans.paths import stages_at
from shardwright.plans.plan import Plan, Stage
from shardwright.spec.model import Layer


def degree_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what is wrong with the degrees of a plan's stages."""
    for rule in (_tensor_parallel, _context_parallel, _expert_parallel, _sequence_parallel):
        yield from rule(plan)


def _tensor_parallel(plan: Plan) -> Iterator[Problem]:
    for place, _, stage in stages_at(plan):
        for what, size in _split_sizes(_kinds(plan, stage)):
            if size % stage.tensor_parallel:
                message = f"{stage.tensor_parallel} does not divide {what} ({size})"
                yield Problem(f"{place}.tensor_parallel", message, "use a divisor of it")
        for kind in _kinds(plan, stage):
            groups, degree = kind.kv_heads, stage.tensor_parallel
            if not kind.latent and groups % degree and degree % groups:
                message = f"{degree} is neither a divisor nor a multiple of the key-value heads ({groups})"
                yield Problem(f"{place}.tensor_parallel", message, "each rank holds whole key-value heads")
        for kind in _kinds(plan, stage):
            if kind.moe and kind.moe.expert_width % stage.expert_tensor_parallel:
                message = f"{stage.expert_tensor_parallel} does not divide the experts' width ({kind.moe.expert_width})"
                yield Problem(f"{place}.expert_tensor_parallel", message, "use a divisor of it")


def _kinds(plan: Plan, stage: Stage) -> tuple[Layer, ...]:
    """The distinct layers of a stage; those of the model where its ranges are out of bounds."""
    model = plan.model
    held = dict.fromkeys(kind for start, end in stage.layers for kind in model.kind_of_layer[start:end])
    return tuple(model.kinds[kind] for kind in held) or model.kinds


def _split_sizes(kinds: tuple[Layer, ...]) -> tuple[tuple[str, int], ...]:
    """Return the sizes that tensor parallelism splits, with their names; equal ones once."""
    sizes: dict[tuple[str, int], None] = {}
    for kind in kinds:
        if kind.attention:
            sizes[("the attention heads", kind.attention.heads)] = None
        if kind.mixer:
            sizes |= dict.fromkeys(kind.mixer.splits)
        if kind.mlp:
            sizes[("the feed-forward width", kind.mlp.width)] = None
        if kind.moe and kind.moe.shared_width:
            sizes[("the shared experts' width", kind.moe.shared_width)] = None
    return tuple(sizes)


def _context_parallel(plan: Plan) -> Iterator[Problem]:
    """Causal attention is balanced by giving each rank a block from either end, hence twice the degree."""
    seq_len = plan.job.seq_len
    for place, _, stage in stages_at(plan):
        degree = stage.context_parallel
        if degree > 1 and seq_len % (2 * degree):
            message = f"sequence length {seq_len} does not divide by twice the degree ({2 * degree})"
            yield Problem(f"{place}.context_parallel", message, "use a smaller degree, or another sequence length")
        for mixer in dict.fromkeys(kind.mixer for kind in _kinds(plan, stage) if degree > 1 and kind.mixer):
            heads = None if mixer.context_heads is None else mixer.context_heads // stage.tensor_parallel
            if heads is None:
                yield Problem(f"{place}.context_parallel", f"no trainer splits the sequence of {mixer.words}", "use 1")
            elif heads % degree:
                message = f"{degree} does not divide the {heads} heads that a rank has of {mixer.words}"
                yield Problem(f"{place}.context_parallel", message, "use a divisor of them")


def _expert_parallel(plan: Plan) -> Iterator[Problem]:
    for place, replica, stage in stages_at(plan):
        experts = {kind.moe.experts for kind in plan.model.kinds if kind.moe}
        degree = stage.expert_parallel
        if degree > 1 and not experts:
            yield Problem(f"{place}.expert_parallel", f"is {degree}, but the model has no experts", "write 1")
        for count in experts:
            if count % degree:
                yield Problem(
                    f"{place}.expert_parallel", f"{degree} does not divide the {count} experts", "use a divisor"
                )
        ranks = replica.count * stage.gpus
        if experts and ranks % (degree * stage.expert_tensor_parallel):
            message = f"{degree} * expert_tensor_parallel {stage.expert_tensor_parallel} does not divide the stage's"
            yield Problem(f"{place}.expert_parallel", f"{message} {ranks} GPUs", "over all equal replicas it must")


def _sequence_parallel(plan: Plan) -> Iterator[Problem]:
    if not plan.sequence_parallel:
        return
    if all(stage.tensor_parallel == 1 for _, _, stage in stages_at(plan)):
        yield Problem("sequence_parallel", "needs tensor parallelism", "write false, or raise tensor_parallel")
    for place, _, stage in stages_at(plan):
        share = plan.job.seq_len // stage.context_parallel
        if share % stage.tensor_parallel:
            message = f"{stage.tensor_parallel} does not divide the sequence of {share} tokens that a rank holds"
            yield Problem(f"{place}.tensor_parallel", message, "turn sequence_parallel off, or use another degree")
