"""What a search has to say beside plans, as values: why candidates fell out, why there is no plan, what would help.

`reports.words` says it in English.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from shardwright.records import record
from shardwright.spec.model import Kind


class Cause(Enum):
    """Why a candidate fell out."""

    MEMORY = "memory"
    BOUND = "bound"  # even a lower bound of its time is more than the best's
    LIMITS = "limits"  # of the budget or the deadline
    DOMINATED = "dominated"  # a costed twin has less recomputation or more overlap
    UNMEASURED = "unmeasured"  # not in the layer profile
    RULE = "rule"
    NOT_LOOKED_AT = "not looked at"  # the search was stopped before
    NOT_NEEDED = "not needed"  # a composition of a mixed plan, ruled out by its bound or never asked for


@record(kw_only=False)
class Rejection:
    """Why candidates fell out, with the name of the user's rule where one dropped them."""

    cause: Cause
    rule: str = ""


def ordered(counts: Mapping[Rejection, int]) -> tuple[tuple[Rejection, int], ...]:
    """Return rejections with their counts, the largest first."""
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0].cause.value, item[0].rule)))


@record
class RareSwitch:
    """What only `runs` of `of` published runs have: values of an axis of the space from `least` to `most`. Of all runs,
    or of those of a `model_kind` (`spec.model.Kind`) on an `architecture`."""

    name: str
    axis: str
    least: float
    most: float
    runs: int
    of: int
    architecture: str | None = None
    model_kind: Kind | None = None


class NotCovered(Enum):
    """Kinds of plans that neither a search nor its bound looks at."""

    VIRTUAL_STAGES = "virtual stages"
    ZERO_BUBBLE = "the zero-bubble schedule"
    CONTEXT_OR_EXPERTS = "context and expert parallelism of unequal replicas"
    SHARDED_GRADIENTS = "ZeRO-2 and ZeRO-3"
    SHARDED_PIPELINES = "ZeRO-2 and ZeRO-3 in pipelines"
    OTHER_MICRO_BATCHES = "micro-batches of other sizes than 1, 2, 4 and 8"
    GROUPED_RECOMPUTATION = "recomputation of groups of layers"
    SHARED_MICRO_BATCH = "a micro-batch split over several GPUs of a stage"
    EMPTY_STAGES = "stages without a layer"
    SPREAD_STAGES = "stages of one type that are not neighbours"
    STRADDLED_STAGES = "a stage on several types"
    OVER_SEVERAL_TYPES = "plans over several types beside those of equal shares that were tried"
    UNEQUAL_DEGREES = "several tensor-parallel degrees in a plan"
    UNEQUAL_DEGREES_OF_A_TYPE = "several tensor-parallel degrees on one type"
    UNEQUAL_REPLICAS_OF_A_TYPE = "unequal replicas on one type"
    OTHER_SPLITS = "splits of layers on one type that are far from even"
    UNEQUAL_DEPTHS_OVER_SITES = "replicas of unequal depth over several sites"
    SPREAD_TENSOR_PARALLEL = "tensor-parallel groups wider than a NVLink domain"
    IDLE_GPUS_OF_MACHINES = "tensor-parallel groups that leave GPUs of a machine idle"
    PARTS_OF_MACHINES = "fewer GPUs of a machine whose rings go through the host"
    OTHER_MIXES = "three offers, or one GPU type on several markets"


@record(kw_only=False)
class DeeperPipelines:
    """Not covered: pipelines of more than so many stages."""

    stages: int


@record(kw_only=False)
class OtherContexts:
    """Not covered: context parallelism with fewer than so many tokens of a sequence on a GPU, or whose stages tile no
    machines."""

    tokens: int


@record(kw_only=False)
class Offload:
    """Not covered: pipelines over several GPU types, or of unequal replicas, with optimizer state in host memory. They
    take that part less time than the best plan at most; None where nothing is known of them."""

    gain: float | None = None


class Lack(Enum):
    """What plans that mix GPU types never have: the last three as `shardwright train`, which runs them, does not."""

    CONTEXT_PARALLEL = "context parallelism"
    EXPERT_PARALLEL = "expert parallelism"
    VIRTUAL_STAGES = "virtual stages"
    ZERO_BUBBLE = "gradients of weights apart"
    OVERLAPPED_MESSAGES = "messages between stages beside computation"
    MORE_SHARDING = "sharded gradients and weights"
    PLAIN_ATTENTION = "attention that is not fused"
    OVERLAPPED_TENSOR_PARALLEL = "tensor-parallel communication beside computation"
    TRAINER_OPTION = "an option of another trainer"


@record(kw_only=False)
class Lacking:
    """A pin, a rule or an option, as it is `written`, that asks for what plans that mix GPU types lack."""

    of: Lack
    written: str


class Mixing(Enum):
    """Which plans over several GPU types."""

    ANY = "plans"
    PIPELINES = "pipelines"
    UNEQUAL = "unequal pipelines"


@record(kw_only=False)
class MixedPlans:
    """Not covered: those plans that mix GPU types, as what is asked for they are `lacking`."""

    lacking: tuple[Lacking, ...] = ()
    of: Mixing = Mixing.ANY


@record(kw_only=False)
class SeveralMakers:
    """Not covered: plans over GPUs of several makers, which no library joins."""

    makers: tuple[str, ...]


@record(kw_only=False)
class UnequalReplicas:
    """Not covered: unequal replicas on one GPU type that have any of some kinds."""

    of: tuple[NotCovered, ...]


@record(kw_only=False)
class UnableGpus:
    """Not covered: GPU types that do not compute in the job's precision."""

    precision: str
    gpus: tuple[str, ...]


@record(kw_only=False)
class PlacesApart:
    """Not covered: mixes of offers at pairs of places that no link joins; empty where a place has no name."""

    pairs: tuple[tuple[str, str], ...]


@record(kw_only=False)
class MixesLeft:
    """Not covered: so many mixes of two offers, the best of which, (GPUs, offer) each, could reach `gain` times as far
    as the front."""

    count: int
    gain: float
    best: tuple[tuple[int, str], ...]


Uncovered = (
    NotCovered
    | DeeperPipelines
    | OtherContexts
    | Offload
    | MixedPlans
    | SeveralMakers
    | UnequalReplicas
    | UnableGpus
    | PlacesApart
    | MixesLeft
)


@record
class JobLimits:
    """The deadline and the budget of a job, None where it has none."""

    deadline_hours: float | None
    budget_dollars: float | None


@record
class NotSure:
    """Nothing keeps the limits with probability `sure`. The best odds that there are, with the expected hours and
    dollars of what has them, None where no price is known."""

    limits: JobLimits
    sure: float
    odds: float
    hours: float
    dollars: float | None


@record
class NoLegalLayout:
    """No layout on the machines is legal, with these pins as the user writes them."""

    gpus: int
    gpu: str
    global_batch: int
    pins: tuple[str, ...]


@record(kw_only=False)
class LimitsNotKept:
    """Plans fit in memory, but none that was found keeps the limits."""

    limits: JobLimits


@record(kw_only=False)
class RulesDropAll:
    """The user's rules, or what the trainers of a framework do not run, drop every plan that fits."""

    rules: tuple[str, ...]

    @property
    def trainers(self) -> str:
        """The trainers whose limits all of these are, "" where some are the user's: limits are named behind theirs."""
        named = {trainer if sign else "" for trainer, sign, _ in (rule.partition(": ") for rule in self.rules)}
        return named.pop() if len(named) == 1 else ""


@record(kw_only=False)
class PinsTooTight:
    """Nothing fits with what is pinned."""


@record
class Need:
    """The leanest plan for a framework on so many GPUs of a type needs more memory than one of them has."""

    framework: str
    gpus: int
    gpu: str
    needed_bytes: float
    memory_bytes: float


@record(kw_only=False)
class TooLittleMemory:
    """Nothing fits in memory: what each type would need, where any memory would do."""

    needs: tuple[Need, ...]


@record(kw_only=False)
class NoOfferKeeps:
    """No offer keeps the limits."""

    limits: JobLimits


@record(kw_only=False)
class NeverEnds:
    """Runs on the offers of these GPUs are interrupted too often to ever end."""

    gpus: tuple[str, ...]


@record(kw_only=False)
class NoLegalOffer:
    """No layout on the offers of these GPUs is legal."""

    gpus: tuple[str, ...]


@record(kw_only=False)
class OffersTooSmall:
    """No number of machines on offer has the memory for the model."""

    model: str
    gpus: tuple[str, ...]


@record
class NoTrainer:
    """No trainer among `frameworks` runs models of `family` as the job asks: `lacks` has why, a trainer each with what
    it lacks. `able` names frameworks whose trainers would run it; `as_program`, whether `shardwright spmd` can."""

    family: str
    frameworks: tuple[str, ...]
    lacks: tuple[tuple[str, str], ...]
    able: tuple[str, ...]
    as_program: bool


@record(kw_only=False)
class Stopped:
    """The search was stopped before it had a plan."""


@record(kw_only=False)
class NothingAsFast:
    """No plan takes at most so many seconds an iteration."""

    seconds: float


Reason = (
    NoTrainer
    | Stopped
    | NothingAsFast
    | NoLegalLayout
    | LimitsNotKept
    | NotSure
    | RulesDropAll
    | PinsTooTight
    | TooLittleMemory
    | NoOfferKeeps
    | NeverEnds
    | NoLegalOffer
    | OffersTooSmall
)


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
    FULL_RECOMPUTATION = "full recomputation"
    ZERO1 = "the distributed optimizer"
    OFFLOADED_OPTIMIZER = "the optimizer's state in host memory"


@record(kw_only=False)
class Unpin:
    """Leave an axis free: there are legal layouts then, with the `legal` values of the axis where these are few, or,
    where `seconds` are given, a plan that takes these."""

    axis: str
    seconds: float | None = None
    legal: tuple[str, ...] = ()


@record(kw_only=False)
class Fastest:
    """The fastest found takes `hours`, for `dollars` where these are known, against a deadline."""

    hours: float
    deadline_hours: float
    dollars: float | None = None


@record(kw_only=False)
class Cheapest:
    """The cheapest found costs `dollars`, in `hours` where these are known, against a budget."""

    dollars: float
    budget_dollars: float
    hours: float | None = None


@record(kw_only=False)
class CheapestInTime:
    """Within the deadline the cheapest costs `dollars`, against a budget."""

    deadline_hours: float
    dollars: float
    budget_dollars: float


@record(kw_only=False)
class FastestInBudget:
    """Within the budget the fastest takes `hours`, against a deadline."""

    budget_dollars: float
    hours: float
    deadline_hours: float


@record(kw_only=False)
class MoreMachines:
    """So many machines would do."""

    machines: int
    gpus_per_node: int
    gpu: str


@record(kw_only=False)
class MoreMemory:
    """GPUs with so much memory would do."""

    memory_bytes: float


@record(kw_only=False)
class MoreHostMemory:
    """Machines with so much memory would do, with state of the optimizer in it."""

    host_memory_bytes: float
    gpu: str


@record(kw_only=False)
class ShorterSequence:
    """A sequence of so many tokens fits."""

    seq_len: int


@record(kw_only=False)
class OtherBatch:
    """A global batch of so many samples has a plan."""

    global_batch: int


@record(kw_only=False)
class BlockRecomputation:
    """A plan fits with full recomputation of so many layers of each virtual stage."""

    layers: int


@record(kw_only=False)
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
    | MoreHostMemory
    | ShorterSequence
    | OtherBatch
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


@record(kw_only=False)
class Shortage:
    """The leanest plan of a rule of thumb needs GPUs of more memory to fit as surely as is asked."""

    needed_bytes: float
    memory_bytes: float
