"""Findings in English: everything that a search has to say beside plans. Flags of the command line are named here."""

from __future__ import annotations

import re
from functools import singledispatch

from shardwright.plans.findings import (
    BlockRecomputation,
    Cause,
    Change,
    Cheapest,
    CheapestInTime,
    DeeperPipelines,
    Failure,
    Fastest,
    FastestInBudget,
    Lack,
    Lacking,
    Limits,
    LimitsNotKept,
    MixedPlans,
    MixesLeft,
    MoreMachines,
    MoreMemory,
    NeverEnds,
    NoLegalLayout,
    NoLegalOffer,
    NoOfferKeeps,
    NotCovered,
    OffersTooSmall,
    PinsTooTight,
    PlacesApart,
    RareSwitch,
    Rejection,
    RulesDropAll,
    Shortage,
    ShorterSequence,
    SmallerMicroBatch,
    TooLittleMemory,
    UnableGpus,
    UnequalReplicas,
    Unpin,
)
from shardwright.units import format_bytes, format_dollars, format_seconds

MOST_NAMED = 2  # pairs of places
ARGUMENT = re.compile(r"`([a-z_]+)=([^`]*)`")

FIXED = {
    Cause.MEMORY: "memory",
    Cause.BOUND: "pruned by bound",
    Cause.LIMITS: "budget or deadline",
    Cause.DOMINATED: "dominated",
    Cause.UNMEASURED: "not in the layer profile",
    Cause.RULE: "rule",
    Cause.NOT_NEEDED: "pruned by bound or not needed",
    NotCovered.VIRTUAL_STAGES: "virtual pipeline stages",
    NotCovered.CONTEXT_OR_EXPERTS: "context and expert parallelism",
    NotCovered.FULL_SHARDING: "ZeRO-2, ZeRO-3 and optimizer offload",
    NotCovered.SHARDED_GRADIENTS: "ZeRO-2 and ZeRO-3",
    NotCovered.SHARED_MICRO_BATCH: "one micro-batch split over several GPUs of a stage",
    NotCovered.SPREAD_STAGES: "stages of one type that are not neighbours",
    NotCovered.STRADDLED_STAGES: "unequal stages of which one is on several GPU types",
    NotCovered.UNEQUAL_DEGREES: "different tensor-parallel degrees in one plan (--tp-per-type searches them)",
    NotCovered.UNEQUAL_DEGREES_OF_A_TYPE: "different tensor-parallel degrees on GPUs of one type",
    NotCovered.UNEQUAL_REPLICAS: "unequal replicas on machines of one type",
    NotCovered.OTHER_MIXES: "mixes of three offers and more, or of one GPU type on several markets",
    Change.OTHER_DEGREES: "degrees must divide heads, layers' widths and the global batch; change one",
    Change.FEWER_PINS: "pin fewer parameters",
    Change.FEWER_PINS_OR_OTHER_DEGREES: (
        "pin fewer parameters; degrees must divide heads, layers' widths, the global batch and the GPUs"
    ),
    Change.RELAXED_RULES: "relax or drop a rule",
    Change.CALMER_OFFERS: (
        "offer machines that are taken back less often, or checkpoints and restarts that take less time"
    ),
    Change.LARGER_OFFERS: "offer more machines, or GPUs with more memory",
    Change.SELECTIVE_RECOMPUTATION: "it fits with selective recomputation",
    Change.ZERO1: "it fits with the distributed optimizer (ZeRO-1)",
    Change.OFFLOADED_OPTIMIZER: "it fits with the distributed optimizer's state in host memory (offload 1.0)",
    Failure.NO_LEGAL_SETTING: "no legal setting",
    Failure.NOT_LEGAL_HERE: "no legal setting on these machines",
    Failure.DOES_NOT_FIT: "no plan fits",
    Failure.DOES_NOT_FIT_OR_KEEP_LIMITS: "no plan fits and keeps the limits",
    Failure.NOT_ON_ALL_TYPES: "no uniform plan fits all types",
    Failure.MISSES_LIMITS: "does not keep the limits",
    Lack.CONTEXT_PARALLEL: "have no context parallelism",
    Lack.EXPERT_PARALLEL: "have no expert parallelism",
    Lack.VIRTUAL_STAGES: "have no virtual pipeline stages",
    Lack.OVERLAPPED_MESSAGES: "have no virtual pipeline stages, without which messages do not overlap",
    Lack.MORE_SHARDING: "shard neither gradients nor weights",
    Lack.PLAIN_ATTENTION: "`shardwright train` alone runs, and always with fused attention",
    Lack.OVERLAPPED_TENSOR_PARALLEL: (
        "`shardwright train` alone runs, and never with overlap of tensor-parallel communication"
    ),
}
MEANING = {
    FIXED[Cause.MEMORY]: "does not fit in memory",
    FIXED[Cause.BOUND]: "even a lower bound on its time exceeds the best plan's",
    FIXED[Cause.DOMINATED]: "differs from a costed candidate only by more recomputation or less overlap",
}


def flagged(text: str) -> str:
    """Return a text of the library with flags where it names arguments: --fit 0.8 for `fit=0.8`."""
    return ARGUMENT.sub(_flag, text)


def _flag(found: re.Match[str]) -> str:
    name, value = found[1].replace("_", "-"), found[2]
    if value == "False":
        return f"--no-{name}"
    return f"--{name}" if value in ("", "True") else f"--{name} {value}"


@singledispatch
def in_words(finding: object) -> str:
    """Return a finding in English."""
    return FIXED[finding]  # type: ignore[index]


def explained(rejection: Rejection) -> str:
    """Return why candidates fell out, with what that means where its name alone does not say it."""
    name = in_words(rejection)
    return f"{name}: {MEANING[name]}" if name in MEANING else name


def limit_names(limits: Limits) -> str:
    """Return which limits there are: budget and the deadline."""
    stated = {"budget": limits.budget_dollars, "deadline": limits.deadline_hours}
    return " and the ".join(name for name, limit in stated.items() if limit is not None)


@in_words.register
def _(found: Rejection) -> str:
    return f"rule {found.rule}" if found.cause is Cause.RULE else FIXED[found.cause]


@in_words.register
def _(found: RareSwitch) -> str:
    return f"{found.name} ({found.runs:,} of {found.of:,} published runs)"


@in_words.register
def _(found: DeeperPipelines) -> str:
    return f"pipelines of more than {found.stages} stages"


@in_words.register
def _(found: Lacking) -> str:
    return f"{in_words(found.of)} ({found.written})"


@in_words.register
def _(found: MixedPlans) -> str:
    why = " and ".join(map(in_words, found.lacking))
    return f"{'pipelines' if found.pipelines else 'plans'} that mix GPU types, which {why}"


@in_words.register
def _(found: UnequalReplicas) -> str:
    return "unequal replicas with " + ", ".join(map(in_words, found.of))


@in_words.register
def _(found: UnableGpus) -> str:
    return f"GPUs that cannot compute in {found.precision}: " + ", ".join(found.gpus)


@in_words.register
def _(found: PlacesApart) -> str:
    names = "; ".join(f"{one or 'no site'} and {other or 'no site'}" for one, other in found.pairs[:MOST_NAMED])
    more = f" and {len(found.pairs) - MOST_NAMED} more" if len(found.pairs) > MOST_NAMED else ""
    return f"mixes of offers at places that no link joins ({names}{more})"


@in_words.register
def _(found: MixesLeft) -> str:
    best = " + ".join(f"{gpus} {offer}" for gpus, offer in found.best)
    return f"{found.count} mixes of two, at best {found.gain - 1.0:.0%} beyond the front: {best} (--mixes N)"


@in_words.register
def _(found: NoLegalLayout) -> str:
    pins = " ".join(f"{axis}={','.join(map(str, values))}" for axis, values in found.pins)
    given = f" with {pins}" if pins else f" for global batch {found.global_batch}"
    return f"no layout of {found.gpus} × {found.gpu} is legal{given}"


@in_words.register
def _(found: LimitsNotKept) -> str:
    return f"plans fit in memory, but none keeps the {limit_names(found.limits)}"


@in_words.register
def _(found: RulesDropAll) -> str:
    return f"the rules drop every plan that fits ({', '.join(found.rules)})"


@in_words.register
def _(found: PinsTooTight) -> str:
    return "nothing fits with the parameters that --set pins"


@in_words.register
def _(found: TooLittleMemory) -> str:
    parts = (
        f"the leanest plan on {need.gpus} × {need.gpu} needs {format_bytes(need.needed_bytes)} a GPU of "
        f"{format_bytes(need.memory_bytes)}"
        for need in found.needs
    )
    return "; ".join(parts) or "nothing fits in memory"


@in_words.register
def _(found: NoOfferKeeps) -> str:
    return f"no offer keeps the {limit_names(found.limits)}"


@in_words.register
def _(found: NeverEnds) -> str:
    return f"a run on these machines is interrupted too often to ever end ({', '.join(found.gpus)})"


@in_words.register
def _(found: NoLegalOffer) -> str:
    return f"no layout on these machines is legal ({', '.join(found.gpus)})"


@in_words.register
def _(found: OffersTooSmall) -> str:
    return f"no number of machines on offer has the memory for {found.model} ({', '.join(found.gpus)})"


@in_words.register
def _(found: Unpin) -> str:
    result = "there are legal layouts" if found.seconds is None else "it fits"
    time = "" if found.seconds is None else f" ({format_seconds(found.seconds)} an iteration)"
    return f"without --set {found.axis}=… {result}{time}"


@in_words.register
def _(found: Fastest) -> str:
    price = "" if found.dollars is None else f" for {format_dollars(found.dollars)}"
    deadline = f"{found.deadline_hours:,.1f} hours"
    return f"the fastest possible takes {found.hours:,.1f} hours{price} (deadline {deadline})"


@in_words.register
def _(found: Cheapest) -> str:
    time = "" if found.hours is None else f" in {found.hours:,.1f} hours"
    budget = format_dollars(found.budget_dollars)
    return f"the cheapest possible is {format_dollars(found.dollars)}{time} (budget {budget})"


@in_words.register
def _(found: CheapestInTime) -> str:
    return (
        f"within {found.deadline_hours:,.1f} hours the cheapest is {format_dollars(found.dollars)} "
        f"(budget {format_dollars(found.budget_dollars)})"
    )


@in_words.register
def _(found: FastestInBudget) -> str:
    return (
        f"for {format_dollars(found.budget_dollars)} the fastest takes {found.hours:,.1f} hours "
        f"(deadline {found.deadline_hours:,.1f} hours)"
    )


@in_words.register
def _(found: MoreMachines) -> str:
    return f"{found.machines} machines of {found.gpus_per_node} × {found.gpu} would do"


@in_words.register
def _(found: MoreMemory) -> str:
    return f"GPUs with {format_bytes(found.memory_bytes)} of memory would do"


@in_words.register
def _(found: ShorterSequence) -> str:
    return f"a sequence length of {found.seq_len} fits"


@in_words.register
def _(found: BlockRecomputation) -> str:
    return f"it fits with full recomputation of {found.layers} layers in each virtual stage (method block)"


@in_words.register
def _(found: SmallerMicroBatch) -> str:
    return f"it fits with a micro-batch of {found.size}"


@in_words.register
def _(found: Shortage) -> str:
    return f"needs {format_bytes(found.needed_bytes)} of {format_bytes(found.memory_bytes)}"
