"""Findings and assumptions in English: everything that a search has to say beside plans. Flags of the command line are
named here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import singledispatch
from string import Formatter
from typing import Any

from shardwright.plans import findings
from shardwright.plans.findings import Cause, JobLimits, Rejection
from shardwright.spec.cluster import Assumption, NodePool
from shardwright.spec.offers import Offer
from shardwright.units import SECONDS_PER_HOUR, format_bytes, format_dollars, format_seconds

MOST_NAMED = 2  # pairs of places
ARGUMENT = re.compile(r"`([a-z_]+)=([^`]*)`")

KIND_WORDS = {
    "dense": "dense models",
    "moe": "mixtures of experts",
    "hybrid": "hybrids",
    "adapters": "adapters",
    "mixed": "several GPU types",
    "preferences": "losses over preferences",
}
"""Kinds of training runs, as `cost.trust.evidence.Conditions.kind` has them."""

FIXED = {
    Cause.MEMORY: "memory",
    Cause.BOUND: "pruned by bound",
    Cause.LIMITS: "budget or deadline",
    Cause.DOMINATED: "dominated",
    Cause.UNMEASURED: "not in the layer profile",
    Cause.RULE: "rule",
    Cause.NOT_LOOKED_AT: "not looked at: the search was stopped",
    Cause.NOT_NEEDED: "pruned by bound or not needed",
    findings.NotCovered.VIRTUAL_STAGES: "virtual pipeline stages",
    findings.NotCovered.ZERO_BUBBLE: "the zero-bubble schedule (--set zero_bubble=on,off tries it)",
    findings.NotCovered.CONTEXT_OR_EXPERTS: "context and expert parallelism in unequal pipelines",
    findings.NotCovered.SHARDED_GRADIENTS: "ZeRO-2 and ZeRO-3",
    findings.NotCovered.SHARDED_PIPELINES: "ZeRO-2 and ZeRO-3 in pipelines on one GPU type",
    findings.NotCovered.OTHER_MICRO_BATCHES: "micro-batches of other sizes than 1, 2, 4 and 8",
    findings.NotCovered.GROUPED_RECOMPUTATION: "recomputation of groups of layers",
    findings.NotCovered.SHARED_MICRO_BATCH: "one micro-batch split over several GPUs of a stage",
    findings.NotCovered.EMPTY_STAGES: "stages that hold the embedding or the output projection alone",
    findings.NotCovered.SPREAD_STAGES: "stages of one type that are not neighbours",
    findings.NotCovered.OVER_SEVERAL_TYPES: "several GPU types, of which those with equal shares were tried",
    findings.NotCovered.STRADDLED_STAGES: "a stage on several GPU types, except uniform plans on all their machines",
    findings.NotCovered.UNEQUAL_DEGREES: "different tensor-parallel degrees in one plan (--tp-per-type searches them)",
    findings.NotCovered.UNEQUAL_DEGREES_OF_A_TYPE: "different tensor-parallel degrees on GPUs of one type",
    findings.NotCovered.UNEQUAL_REPLICAS_OF_A_TYPE: "unequal replicas on one GPU type",
    findings.NotCovered.SPREAD_TENSOR_PARALLEL: "tensor-parallel groups wider than a NVLink domain or machine",
    findings.NotCovered.IDLE_GPUS_OF_MACHINES: "tensor-parallel groups that leave GPUs of a machine idle",
    findings.NotCovered.PARTS_OF_MACHINES: "fewer GPUs of a machine, faster than priced (try a smaller --cluster)",
    findings.NotCovered.OTHER_SPLITS: "layers uneven between the ends, or far from even at an end, on one GPU type",
    findings.NotCovered.UNEQUAL_DEPTHS_OVER_SITES: "replicas of unequal depth over several sites",
    findings.NotCovered.OTHER_MIXES: "mixes of three offers and more, or of one GPU type on several markets",
    findings.Change.OTHER_DEGREES: "degrees must divide heads, layers' widths and the global batch; change one",
    findings.Change.FEWER_PINS: "pin fewer parameters",
    findings.Change.FEWER_PINS_OR_OTHER_DEGREES: (
        "pin fewer parameters; degrees must divide heads, layers' widths, the global batch and the GPUs"
    ),
    findings.Change.RELAXED_RULES: "relax or drop a rule",
    findings.Change.CALMER_OFFERS: (
        "offer machines that are taken back less often, or checkpoints and restarts that take less time"
    ),
    findings.Change.LARGER_OFFERS: "offer more machines, or GPUs with more memory",
    findings.Change.OTHER_MACHINES: "`shardwright shop` with the same limits looks at other machines and spot prices",
    findings.Change.SELECTIVE_RECOMPUTATION: "it fits with selective recomputation",
    findings.Change.FULL_RECOMPUTATION: "it fits with full recomputation of every layer",
    findings.Change.ZERO1: "it fits with the distributed optimizer (ZeRO-1)",
    findings.Change.OFFLOADED_OPTIMIZER: "it fits with the distributed optimizer's state in host memory (offload 1.0)",
    findings.Failure.NO_LEGAL_SETTING: "no legal setting",
    findings.Failure.NOT_LEGAL_HERE: "no legal setting on these machines",
    findings.Failure.DOES_NOT_FIT: "no plan fits",
    findings.Failure.DOES_NOT_FIT_OR_KEEP_LIMITS: "no plan fits and keeps the limits",
    findings.Failure.NOT_ON_ALL_TYPES: "no uniform plan fits all types",
    findings.Failure.MISSES_LIMITS: "does not keep the limits",
    findings.Mixing.ANY: "plans",
    findings.Mixing.PIPELINES: "pipelines",
    findings.Mixing.UNEQUAL: "unequal pipelines",
    findings.Lack.CONTEXT_PARALLEL: "have no context parallelism",
    findings.Lack.EXPERT_PARALLEL: "have no expert parallelism",
    findings.Lack.VIRTUAL_STAGES: "have no virtual pipeline stages",
    findings.Lack.ZERO_BUBBLE: "have no zero-bubble schedule",
    findings.Lack.OVERLAPPED_MESSAGES: "have no virtual pipeline stages, without which messages do not overlap",
    findings.Lack.MORE_SHARDING: "shard neither gradients nor weights",
    findings.Lack.PLAIN_ATTENTION: "`shardwright train` alone runs, and always with fused attention",
    findings.Lack.TRAINER_OPTION: "`shardwright train` alone runs, and without this option",
    findings.Lack.OVERLAPPED_TENSOR_PARALLEL: (
        "`shardwright train` alone runs, and never with overlap of tensor-parallel communication"
    ),
}
# Sentences with the fields of a finding, {0}; how `_Words` writes them stands after the colon.
SENTENCES = {
    findings.DeeperPipelines: "pipelines of more than {0.stages} stages",
    findings.OtherContexts: (
        "context parallelism with fewer than {0.tokens:,} tokens on a GPU, or on parts of several machines"
    ),
    findings.Lacking: "{0.of:finding} ({0.written})",
    findings.UnequalReplicas: "unequal replicas with {0.of:findings}",
    findings.UnableGpus: "GPUs that cannot compute in {0.precision}: {0.gpus:names}",
    findings.LimitsNotKept: "plans fit in memory, but none that was found keeps the {0.limits:limits}",
    findings.NotSure: (
        "nothing keeps the {0.limits:limits} with a probability of {0.sure:.0%}: the best odds are {0.odds:.0%}, of a "
        "run of {0.hours:hours}"
    ),
    findings.PinsTooTight: "nothing fits with the parameters that --set pins",
    findings.Need: (
        "the leanest plan for {0.framework} on {0.gpus} × {0.gpu} needs {0.needed_bytes:bytes} a GPU of "
        "{0.memory_bytes:bytes}"
    ),
    findings.NoOfferKeeps: "no offer keeps the {0.limits:limits}",
    findings.NeverEnds: "a run on these machines is interrupted too often to ever end ({0.gpus:names})",
    findings.NoLegalOffer: "no layout on these machines is legal ({0.gpus:names})",
    findings.OffersTooSmall: "no number of machines on offer has the memory for {0.model} ({0.gpus:names})",
    findings.CheapestInTime: (
        "within {0.deadline_hours:hours} the cheapest is {0.dollars:dollars} (budget {0.budget_dollars:dollars})"
    ),
    findings.FastestInBudget: (
        "for {0.budget_dollars:dollars} the fastest takes {0.hours:hours} (deadline {0.deadline_hours:hours})"
    ),
    findings.MoreMachines: "{0.machines} machines of {0.gpus_per_node} × {0.gpu} would do",
    findings.MoreMemory: "GPUs with {0.memory_bytes:bytes} of memory would do",
    findings.MoreHostMemory: "machines of {0.gpu} with {0.host_memory_bytes:bytes} of memory would do",
    findings.ShorterSequence: "a sequence length of {0.seq_len} fits",
    findings.OtherBatch: "a global batch of {0.global_batch} has a plan",
    findings.BlockRecomputation: (
        "it fits with full recomputation of {0.layers} layers in each virtual stage (method block)"
    ),
    findings.SmallerMicroBatch: "it fits with a micro-batch of {0.size}",
    findings.Shortage: "needs {0.needed_bytes:bytes} of {0.memory_bytes:bytes}",
    findings.MixedPlans: "{0.of:finding} that mix GPU types, which {0.lacking:all}",
    findings.SeveralMakers: "GPUs of {0.makers:and} together, which no library joins",
    findings.Stopped: "the search was stopped before it found a plan; give it more time",
    findings.NothingAsFast: "no plan takes at most {0.seconds:seconds} an iteration",
}
MEANING = {
    Cause.MEMORY: "does not fit in memory",
    Cause.BOUND: "even a lower bound on its time exceeds the best plan's",
    Cause.DOMINATED: "differs from a costed candidate only by more recomputation or less overlap",
}


def flagged(text: str) -> str:
    """Return a text of the library with flags where it names arguments: --fit 0.8 for `fit=0.8`."""
    return ARGUMENT.sub(_flag, text)


def _flag(match: re.Match[str]) -> str:
    name, value = match[1].replace("_", "-"), match[2]
    if value == "False":
        return f"--no-{name}"
    return f"--{name}" if value in ("", "True") else f"--{name} {value}"


def explained(rejection: Rejection) -> str:
    """Return why candidates fell out, with what that means where its name alone does not say it."""
    meaning = MEANING.get(rejection.cause)
    return in_words(rejection) if meaning is None else f"{in_words(rejection)}: {meaning}"


def limit_names(limits: JobLimits) -> str:
    """Return which limits there are: budget and the deadline."""
    stated = {"budget": limits.budget_dollars, "deadline": limits.deadline_hours}
    return " and the ".join(name for name, limit in stated.items() if limit is not None)


@singledispatch
def in_words(finding: object) -> str:
    """Return a finding in English."""
    sentence = SENTENCES.get(type(finding))
    return FIXED[finding] if sentence is None else _WORDS.format(sentence, finding)  # type: ignore[index]


class _Words(Formatter):
    """Formats quantities, names and findings inside a finding."""

    def format_field(self, value: Any, format_spec: str) -> str:
        write = WRITERS.get(format_spec)
        return super().format_field(value, format_spec) if write is None else write(value)


WRITERS: dict[str, Callable[[Any], str]] = {
    "all": lambda parts: " and ".join(map(in_words, parts)),
    "and": " and ".join,
    "bytes": format_bytes,
    "dollars": format_dollars,
    "finding": in_words,
    "findings": lambda parts: ", ".join(map(in_words, parts)),
    "hours": lambda hours: format_seconds(hours * SECONDS_PER_HOUR),
    "limits": limit_names,
    "names": ", ".join,
    "seconds": format_seconds,
}
_WORDS = _Words()


@in_words.register
def _(finding: Rejection) -> str:
    return f"rule {finding.rule}" if finding.cause is Cause.RULE else FIXED[finding.cause]


@in_words.register
def _(finding: findings.RareSwitch) -> str:
    of_class = f" of {KIND_WORDS[finding.model_kind]} on {finding.architecture}" if finding.model_kind else ""
    return f"{finding.name} ({finding.runs:,} of {finding.of:,} published runs{of_class})"


@in_words.register
def _(finding: findings.Offload) -> str:
    gain = "" if finding.gain is None else f", which saves {finding.gain:.1%} of the time at most"
    return f"the optimizer in host memory in unequal pipelines{gain} (--set offload=0,0.25,0.5,0.75,1 searches it)"


@in_words.register
def _(finding: findings.PlacesApart) -> str:
    names = "; ".join(f"{start or 'no site'} and {other or 'no site'}" for start, other in finding.pairs[:MOST_NAMED])
    more = f" and {len(finding.pairs) - MOST_NAMED} more" if len(finding.pairs) > MOST_NAMED else ""
    return f"mixes of offers at places that no link joins ({names}{more})"


@in_words.register
def _(finding: findings.MixesLeft) -> str:
    best = " + ".join(f"{gpus} {offer}" for gpus, offer in finding.best)
    return f"{finding.count} mixes of two, at best {finding.gain - 1.0:.0%} beyond the front: {best} (--mixes N)"


@in_words.register
def _(finding: findings.NoLegalLayout) -> str:
    given = f" with {' '.join(finding.pins)}" if finding.pins else f" for global batch {finding.global_batch}"
    return f"no layout of {finding.gpus} × {finding.gpu} is legal{given}"


@in_words.register
def _(finding: findings.NoTrainer) -> str:
    others = "`shardwright spmd` can" if finding.as_program else "nor does any other"
    runs = f"these would run it: {', '.join(finding.able)}" if finding.able else others
    lacks = "; ".join(f"{trainer}: {words}" for trainer, words in finding.lacks)
    of_model = any(words.startswith("model") for _, words in finding.lacks)
    what = f"family {finding.family}" if of_model else f"this job of {finding.family}"
    return f"no trainer for {' or '.join(finding.frameworks)} that we know runs {what} ({lacks}); {runs}"


@in_words.register
def _(finding: findings.RulesDropAll) -> str:
    if finding.trainers:
        limits = ", ".join(name.partition(": ")[2] for name in finding.rules)
        return f"no plan that {finding.trainers} can run fits (lacking there: {limits})"
    return f"the rules drop every plan that fits ({', '.join(finding.rules)})"


@in_words.register
def _(finding: findings.TooLittleMemory) -> str:
    return "; ".join(map(in_words, finding.needs)) or "nothing fits in memory"


@in_words.register
def _(finding: findings.Unpin) -> str:
    result = "there are legal layouts" if finding.seconds is None else "it fits"
    time = "" if finding.seconds is None else f" ({format_seconds(finding.seconds)} an iteration)"
    values = f": {finding.axis} may be {', '.join(finding.legal)}" if finding.legal else ""
    return f"without --set {finding.axis}=… {result}{time}{values}"


@in_words.register
def _(finding: findings.Fastest) -> str:
    price = "" if finding.dollars is None else f" for {format_dollars(finding.dollars)}"
    hours, deadline = (format_seconds(limit * SECONDS_PER_HOUR) for limit in (finding.hours, finding.deadline_hours))
    return f"the fastest found takes {hours}{price} (deadline {deadline})"


@in_words.register
def _(finding: findings.Cheapest) -> str:
    time = "" if finding.hours is None else f" in {format_seconds(finding.hours * SECONDS_PER_HOUR)}"
    budget = format_dollars(finding.budget_dollars)
    return f"the cheapest found is {format_dollars(finding.dollars)}{time} (budget {budget})"


def pools_assumed(pools: Iterable[NodePool]) -> list[str]:
    """Return what was assumed of machines, each once."""
    return list(dict.fromkeys(f"{pool.gpu.name}: {assumed}" for pool in pools for assumed in pool.assumed))


def offers_assumed(offers: Iterable[Offer], terms: Iterable[Assumption]) -> list[str]:
    """Return what was assumed of machines to rent and of the terms, each once."""
    lines = [f"{offer.pool.gpu.name}: {assumed}" for offer in offers for assumed in offer.assumed]
    return [flagged(words) for words in dict.fromkeys([*lines, *map(str, terms)])]
