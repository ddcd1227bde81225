"""What would help where there is no plan, and why a rule of thumb has none, as values. `reports.words` says it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Change(Enum):
    """Changes without a figure that would give a plan, or make one fit."""

    OTHER_DEGREES = "degrees that divide heads, widths and batch"
    FEWER_PINS = "fewer pins"
    FEWER_PINS_OR_OTHER_DEGREES = "fewer pins, or degrees that divide"
    RELAXED_RULES = "relaxed rules"
    CALMER_OFFERS = "offers with fewer preemptions"
    LARGER_OFFERS = "offers with more memory"
    OTHER_MACHINES = "other machines, or spot ones"
    SELECTIVE_RECOMPUTATION = "selective recomputation"
    ZERO1 = "the distributed optimizer"
    OFFLOADED_OPTIMIZER = "the optimizer's state in host memory"


@dataclass(frozen=True, slots=True)
class Unpin:
    """Leave an axis free: there are legal layouts then or, where `seconds` are given, a plan that takes these."""

    axis: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest found takes `hours`, for `dollars` where these are known, against a deadline."""

    hours: float
    deadline_hours: float
    dollars: float | None = None


@dataclass(frozen=True, slots=True)
class Cheapest:
    """The cheapest found costs `dollars`, in `hours` where these are known, against a budget."""

    dollars: float
    budget_dollars: float
    hours: float | None = None


@dataclass(frozen=True, slots=True)
class CheapestInTime:
    """Within the deadline the cheapest costs `dollars`, against a budget."""

    deadline_hours: float
    dollars: float
    budget_dollars: float


@dataclass(frozen=True, slots=True)
class FastestInBudget:
    """Within the budget the fastest takes `hours`, against a deadline."""

    budget_dollars: float
    hours: float
    deadline_hours: float


@dataclass(frozen=True, slots=True)
class MoreMachines:
    """So many machines would do."""

    machines: int
    gpus_per_node: int
    gpu: str


@dataclass(frozen=True, slots=True)
class MoreMemory:
    """GPUs with so much memory would do."""

    memory_bytes: float


@dataclass(frozen=True, slots=True)
class ShorterSequence:
    """A sequence of so many tokens fits."""

    seq_len: int


@dataclass(frozen=True, slots=True)
class BlockRecomputation:
    """A plan fits with full recomputation of so many layers of each virtual stage."""

    layers: int


@dataclass(frozen=True, slots=True)
class SmallerMicroBatch:
    """A plan fits with so large a micro-batch."""

    size: int


Remedy = (
    Change
    | Unpin
    | Fastest
    | Cheapest
    | CheapestInTime
    | FastestInBudget
    | MoreMachines
    | MoreMemory
    | ShorterSequence
    | BlockRecomputation
    | SmallerMicroBatch
)


class Failure(Enum):
    """Why a rule of thumb gives no plan."""

    NO_LEGAL_SETTING = "no legal setting"
    NOT_LEGAL_HERE = "no legal setting on these machines"
    DOES_NOT_FIT = "does not fit"
    DOES_NOT_FIT_OR_KEEP_LIMITS = "does not fit or keep the limits"
    NOT_ON_ALL_TYPES = "no uniform plan fits all types"
    MISSES_LIMITS = "does not keep the limits"


@dataclass(frozen=True, slots=True)
class Shortage:
    """The leanest plan of a rule of thumb needs GPUs of more memory to fit as surely as is asked."""

    needed_bytes: float
    memory_bytes: float
