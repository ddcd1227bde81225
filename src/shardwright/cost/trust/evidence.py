"""The published runs that a prediction rests on: which are nearest, how near they are, and what none of them has.

`data/evidence.npz` has one row for each published run that the cost model predicts, made by
`python -m tools.refit intervals`. Two settings are near if software, GPU and arithmetic are the same and the
sizes alike; the distance is 1 for a run with four times the GPUs, or twice the hidden size.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np

from shardwright.arrays import Array, Floats
from shardwright.files import shipped_file
from shardwright.plans.plan import Evidence, MfuRecord, Precedents, Unmeasured
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.spec.cluster import Gpu, kind_of
from shardwright.spec.job import Job
from shardwright.spec.model import Model, family_of, training_kind

NAMES = ("framework", "gpu", "architecture", "precision", "kind", "family")
# Distance for another name, and how many doublings of a size are a distance of 1: they order the runs that are shown;
# chosen, 0.5 to 2 times.
MISMATCH = {"framework": 1.5, "gpu": 0.5, "architecture": 1.5, "precision": 1.0}
FLAGS = {"adapters": 1.0, "experts": 1.5}  # chosen, 0.5 to 2 times
SEVERAL_SITES = 1.5  # distance of machines at several sites, where no published run was; chosen, 0.75 to 3
DOUBLINGS = {"gpus": 2.0, "hidden": 1.0, "layers": 1.5, "seq_len": 2.0, "tokens_per_gpu": 2.5}  # chosen, 0.5 to 2 times

FACTS: Mapping[str, tuple[str, ...]] = {
    "framework": ("framework",),
    "framework_architecture": ("framework", "architecture"),
    "framework_kind": ("framework", "kind"),
    "gpu": ("gpu",),
    "family_kind": ("family", "kind"),
    "precision_architecture": ("precision", "architecture"),
}
"""What a run and a setting may have in common, by the names that have to be the same."""
SCALE, SITES = "gpus", "sites"  # facts that are no names
MIXED = "mixed"  # the kind of run on several GPU types
PREFERENCES = "preferences"  # a kind of training of which no run is published
OF_FRAMEWORK = ("framework_architecture", "framework_kind", SCALE)  # lacking wherever the framework is
# How much it weighs that no run has a fact; `tools.refit intervals` finds how intervals grow with the sum, so a factor
# on all of them moves none; chosen, 0.5 to 2 times.
LACKS: Mapping[str, float] = {
    "framework": 1.5,
    "framework_architecture": 1.0,
    "framework_kind": 1.0,
    "gpu": 0.75,
    "family_kind": 0.75,
    "precision_architecture": 0.5,
    SCALE: 0.5,
    SITES: 1.0,
}
SIZES = (3e9, 20e9)  # parameters between classes of models that have a record each; chosen, 0.5 to 2 times
LEAST_RUNS = 5  # of a class whose record says something; chosen, 3 to 10
MANY_RUNS = 20  # of a precision and an architecture whose highest MFU bounds others; chosen, 10 to 50
GAIN = 1.25  # over the highest published MFU, by which releases of one benchmark became faster; chosen, 1.1 to 1.5
BEYOND = 1.4  # times the most GPUs that a framework was seen on is another scale; chosen, 1.2 to 2


@record
class Conditions:
    """What of a training run decides how well its time is known: no strategy, only the task and the machines. `kind` is
    that of the model (`spec.model.training_kind`), or mixed where it is on several GPU types."""

    framework: str
    gpu: str
    architecture: str
    precision: str
    adapters: bool
    experts: bool
    gpus: float
    hidden: float
    layers: float
    seq_len: float
    tokens_per_gpu: float
    parameters: float
    family: str
    kind: str
    sites: int = 1


def _kind(model: Model, gpu_types: int, job: Job) -> str:
    if job.preference is not None:
        return PREFERENCES
    return MIXED if gpu_types > 1 else training_kind(model, adapters=job.adapters)


@record
class Published:
    """Published runs as columns [N]. `sizes` are logarithms to base 2, [N, 5]; `seconds` measured, `log_error` is
    log(measured / predicted) of a prediction that had not seen the run; `mfu` the model's FLOPs over those of its GPUs'
    peaks."""

    names: Array
    flags: Array
    sizes: Floats
    model: Array
    source: Array
    strategy: Array
    seconds: Floats
    tokens_per_second: Floats
    log_error: Floats
    mfu: Floats
    parameters: Floats

    @property
    def gpus(self) -> Floats:
        """How many GPUs each was on, [N]."""
        return np.asarray(2.0 ** self.sizes[:, list(DOUBLINGS).index("gpus")])


def conditions_of(model: Model, gpu: Gpu, gpus: int, job: Job, *, gpu_types: int = 1, sites: int = 1) -> Conditions:
    """Return the setting of a job on `gpus` GPUs, one of so many types, at so many sites."""
    return Conditions(
        framework=job.framework,
        gpu=gpu.kind,
        architecture=gpu.architecture,
        precision=job.precision,
        adapters=job.adapters,
        experts=model.has_experts,
        gpus=gpus,
        hidden=model.hidden,
        layers=len(model.layers),
        seq_len=job.seq_len,
        tokens_per_gpu=job.tokens_per_iteration / gpus,
        parameters=model.parameters,
        family=family_of(model),
        kind=_kind(model, gpu_types, job),
        sites=sites,
    )


@lru_cache
def published() -> Published:
    """Return the runs that ship with the package."""
    content = shipped_file("shardwright.cost.trust", "evidence.npz")
    with np.load(io.BytesIO(content)) as arrays:
        return Published(**{name: arrays[name] for name in Published.__dataclass_fields__})


def unpublished(gpus: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds of those GPU types of which no published run is known."""
    return tuple(kind for kind in dict.fromkeys(map(kind_of, gpus)) if kind not in _published_gpus())


@lru_cache
def _published_gpus() -> frozenset[str]:
    return frozenset(map(str, published().names[:, NAMES.index("gpu")]))


def distances(setting: Conditions, runs: Published) -> Floats:
    """Return the distance of every run from `setting`, [N]."""
    square = np.zeros(len(runs.seconds))
    square += (setting.sites > 1) * SEVERAL_SITES**2
    for name, weight in MISMATCH.items():
        square += (runs.names[:, NAMES.index(name)] != getattr(setting, name)) * weight**2
    for column, (name, weight) in enumerate(FLAGS.items()):
        square += (runs.flags[:, column] != getattr(setting, name)) * weight**2
    for column, (name, doublings) in enumerate(DOUBLINGS.items()):
        square += ((runs.sizes[:, column] - np.log2(getattr(setting, name))) / doublings) ** 2
    return coarse(np.sqrt(square))


@record
class Seen:
    """What some runs have: the values of each of `FACTS`, and the most GPUs that each framework was on."""

    values: Mapping[str, frozenset[tuple[str, ...]]]
    most_gpus: Mapping[str, float]


def seen_in(names: Array, gpus: Floats) -> Seen:
    """Return what runs with these `names`, [N, 6], on so many `gpus`, [N], have."""
    columns = dict(zip(NAMES, names.T.tolist(), strict=True))
    most: dict[str, float] = {}
    for framework, count in zip(columns["framework"], gpus.tolist(), strict=True):
        most[framework] = max(most.get(framework, 0.0), count)
    values = {fact: frozenset(zip(*(columns[name] for name in parts), strict=True)) for fact, parts in FACTS.items()}
    return Seen(values=values, most_gpus=most)


@lru_cache
def seen_in_published() -> Seen:
    """Return what the published runs have."""
    runs = published()
    return seen_in(runs.names, runs.gpus)


def lacking(setting: Conditions, seen: Seen) -> tuple[str, ...]:
    """Return which of `LACKS` hold of a setting: what none of the runs that were seen has."""
    lacks = [fact for fact in FACTS if _value(setting, fact) not in seen.values[fact]]
    if setting.gpus > BEYOND * seen.most_gpus.get(setting.framework, 0.0):
        lacks.append(SCALE)
    return (*lacks, SITES) if setting.sites > 1 else tuple(lacks)


def _value(setting: Conditions, fact: str) -> tuple[str, ...]:
    return tuple(getattr(setting, part) for part in FACTS[fact])


def lack(setting: Conditions, seen: Seen) -> float:
    """Return how much of a setting no run has: the weights of what is lacking, added up."""
    return sum(LACKS[fact] for fact in lacking(setting, seen))


@lru_cache(maxsize=256)
def precedents(settings: tuple[Conditions, ...]) -> Precedents:
    """Return how far plans on GPUs of these settings, one a type, were ever measured. What follows from a framework
    that no run is of is left out, and of several GPU types their model's family."""
    seen, runs = seen_in_published(), published()
    lacks: dict[Unmeasured, None] = {}
    alike = np.zeros(len(runs.seconds), dtype=bool)
    for setting in settings:
        facts = lacking(setting, seen)
        unknown = "framework" in facts
        for fact in facts:
            implied = unknown and fact in OF_FRAMEWORK
            if not implied and not (fact == "family_kind" and setting.kind == MIXED):
                lacks[Unmeasured(fact=fact, of=_of(setting, fact, seen))] = None
        same = [runs.names[:, NAMES.index(name)] == getattr(setting, name) for name in ("framework", "gpu", "kind")]
        alike |= np.logical_and.reduce(same)
    near = alike & (np.abs(np.log2(runs.gpus / settings[0].gpus)) <= 1.0)
    return Precedents(
        kind=settings[0].kind,
        runs=int(alike.sum()),
        at_scale=int(near.sum()),
        lacking=tuple(lacks),
        record=_record(settings[0], runs) if len(settings) == 1 else None,
    )


def _record(setting: Conditions, runs: Published) -> MfuRecord | None:
    names = ("architecture", "precision", "kind")
    alike = [runs.names[:, NAMES.index(name)] == getattr(setting, name) for name in names]
    alike += [(runs.parameters >= size) == (setting.parameters >= size) for size in SIZES]
    places = np.flatnonzero(np.logical_and.reduce(alike))
    if len(places) < LEAST_RUNS:
        return None
    best = int(places[runs.mfu[places].argmax()])
    return MfuRecord(
        mfu=float(runs.mfu[best]),
        runs=len(places),
        model=str(runs.model[best]),
        gpus=round(float(runs.gpus[best])),
        gpu=str(runs.names[best, NAMES.index("gpu")]),
    )


@lru_cache(maxsize=256)
def ceiling(architecture: str, precision: str) -> float:
    """Return the MFU that no run will exceed: `GAIN` times the highest that was published in a precision on an
    architecture, or on any where few are, or all of one source, whose network or models may bound them; 1 at most."""
    runs = published()
    alike = runs.names[:, NAMES.index("precision")] == precision
    here = alike & (runs.names[:, NAMES.index("architecture")] == architecture)
    several = len(set(runs.source[here])) > 1
    chosen = here if several and here.sum() >= MANY_RUNS else alike
    return min(GAIN * float(runs.mfu[chosen].max()), 1.0) if chosen.sum() >= MANY_RUNS else 1.0


def _of(setting: Conditions, fact: str, seen: Seen) -> tuple[str, ...]:
    if fact == SITES:
        return (str(setting.sites),)
    if fact == SCALE:
        return setting.framework, f"{seen.most_gpus[setting.framework]:.0f}"
    return _value(setting, fact)


@lru_cache(maxsize=256)
def nearest(setting: Conditions, count: int = 3) -> tuple[Evidence, ...]:
    """Return the `count` nearest published runs, one of each source and setting, nearest first."""
    runs = published()
    far = distances(setting, runs)
    chosen: list[Evidence] = []
    seen: set[tuple[str, float]] = set()
    for index in np.argsort(far, kind="stable"):
        key = str(runs.source[index]), round(float(far[index]), 6)
        if key in seen:
            continue
        seen.add(key)
        chosen.append(
            Evidence(
                model=str(runs.model[index]),
                gpus=round(float(runs.gpus[index])),
                gpu=str(runs.names[index, 1]),
                framework=str(runs.names[index, 0]),
                strategy=str(runs.strategy[index]),
                tokens_per_second=float(runs.tokens_per_second[index]),
                predicted_tokens_per_second=float(runs.tokens_per_second[index]) * math.exp(runs.log_error[index]),
                distance=float(far[index]),
                source=str(runs.source[index]),
            )
        )
        if len(chosen) == count:
            break
    return tuple(chosen)
