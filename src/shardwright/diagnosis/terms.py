"""Expected beside measured, term by term, seen from the rank that the others wait for."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.diagnosis.case import Case
from shardwright.traces.figures import Collective, RankFigures

COMPUTE, HOST, DATA, OPTIMIZER = "compute", "host", "data", "optimizer"
TENSOR, CONTEXT, EXPERT, PIPELINE, GRADIENTS = "tensor", "context", "expert", "pipeline", "gradients"
COPIES, STALLS, TALK = "copies", "stalls", "communication"
# What names of process groups say of the dimension, in Megatron-LM, torchtitan, DeepSpeed, FSDP and `train`.
GROUP_WORDS = (
    (EXPERT, ("expert_model", "expert_tensor", "ep", "mesh_ep")),
    (TENSOR, ("tensor", "tp", "mesh_tp")),
    (CONTEXT, ("context", "cp", "mesh_cp")),
    (PIPELINE, ("pipeline", "pp", "mesh_pp", "position_embedding", "embedding")),
    (GRADIENTS, ("gradients", "data", "dp", "fsdp", "dp_shard", "mesh_dp", "mesh_default", "zero")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Seconds of a step that go to one thing: as expected, as measured (None where nothing tells), and how much more of
    it something else hides."""

    name: str
    expected_seconds: float
    measured_seconds: float | None = None
    hidden_seconds: float | None = None

    @property
    def excess_seconds(self) -> float | None:
        """Measured less expected."""
        return None if self.measured_seconds is None else self.measured_seconds - self.expected_seconds


def terms(case: Case) -> tuple[Term, ...]:
    """Return the terms of a step. Without a trace only stalls are measured."""
    expected = expected_terms(case)
    measured, hidden = _measured(case, case.critical) if case.critical is not None else ({}, {})
    if TALK in measured:  # groups that the trace does not tell apart
        joined = [name for name in (TENSOR, CONTEXT, EXPERT, GRADIENTS) if name in expected]
        expected[TALK] = sum(expected.pop(name) for name in joined)
        measured[TALK] += sum(measured.pop(name, 0.0) for name in joined)
        hidden[TALK] = hidden.get(TALK, 0.0) + sum(hidden.pop(name, 0.0) for name in joined)
    stalls = sum(seconds for _, seconds in case.stall_seconds)
    if stalls or case.state is not None:
        expected[STALLS], measured[STALLS] = 0.0, stalls
    return tuple(
        Term(
            name=name,
            expected_seconds=expected.get(name, 0.0),
            measured_seconds=measured.get(name),
            hidden_seconds=hidden.get(name),
        )
        for name in dict.fromkeys((*expected, *measured))
        if expected.get(name, 0.0) > 0.0 or measured.get(name)
    )


def expected_terms(case: Case) -> dict[str, float]:
    """Return the terms of the prediction under the names that traces have. With a trace they are those of the stage of
    the rank that the others wait for, which may work less than the busiest."""
    time = case.prediction.time
    expected = {
        COMPUTE: time.forward_seconds + time.backward_seconds + time.recompute_seconds,
        HOST: time.framework_seconds,
        TENSOR: time.tensor_parallel_seconds,
        CONTEXT: time.context_parallel_seconds,
        EXPERT: time.expert_parallel_seconds,
        PIPELINE: time.pipeline_seconds + time.bubble_seconds,
        GRADIENTS: time.data_parallel_seconds,
        OPTIMIZER: time.optimizer_seconds,
        DATA: 0.0,
    }
    rank = case.critical
    busy = None if rank is None else case.expected_compute(rank.rank)
    if rank is not None and busy is not None:
        replica = case.account.replicas[case.stage_of_rank[rank.rank][0]]
        work = (COMPUTE, HOST, TENSOR, CONTEXT, EXPERT)
        whole = sum(expected[name] for name in work)
        for name in work:
            expected[name] *= busy / whole if whole and replica.pipeline_seconds > 1.001 * busy else 1.0
        expected[PIPELINE] = max(replica.pipeline_seconds - busy, 0.0)
    return expected


def dimension_of(case: Case, call: Collective) -> str:
    """Return which parallelism a collective serves: by the name of its group, else by its kind and ranks, else by what
    the plan leaves; `communication` where that leaves several."""
    words = call.group.casefold().replace("-", "_")
    for name, known in GROUP_WORDS:
        if any(word == words or (len(word) > 2 and word in words) for word in known):
            return name
    if call.kind == "send_recv":
        return PIPELINE if _depth(case) > 1 else CONTEXT
    sizes = _sizes(case)
    if call.kind == "all_to_all" and sizes.get(EXPERT, 1) > 1:
        return EXPERT
    able = [name for name in (TENSOR, CONTEXT, GRADIENTS) if sizes[name] > 1]
    if call.ranks:
        able = [name for name in able if sizes[name] == call.ranks] or able
    return able[0] if len(able) == 1 else TALK if able else GRADIENTS


def _depth(case: Case) -> int:
    return max(len(replica.stages) for replica in case.plan.replicas)


def _sizes(case: Case) -> dict[str, int]:
    stages = [stage for replica in case.plan.replicas for stage in replica.stages]
    context = max(stage.context_parallel for stage in stages)
    return {
        TENSOR: max(stage.tensor_parallel for stage in stages),
        CONTEXT: context,
        EXPERT: max(stage.expert_parallel for stage in stages),
        GRADIENTS: case.plan.data_parallel * context,
    }


def _measured(case: Case, rank: RankFigures) -> tuple[dict[str, float], dict[str, float]]:
    measured = {
        COMPUTE: rank.compute_seconds - rank.optimizer_seconds,
        HOST: rank.idle_seconds,
        OPTIMIZER: rank.optimizer_seconds,
        DATA: rank.data_seconds,
        COPIES: rank.copy_seconds,
    }
    hidden: dict[str, float] = {}
    for call in rank.collectives:
        name = dimension_of(case, call)
        measured[name] = measured.get(name, 0.0) + call.exposed_seconds
        hidden[name] = hidden.get(name, 0.0) + call.hidden_seconds
    return measured, hidden
