"""Unequal replicas over several GPU types with experts or sequences spread over them: priced beside the proof, which
has none.

What is tried are as many pipelines over several types as there can be, beside replicas of one type each on what these
leave idle, and replicas of one type each alone. In which time they finish the batch together, by the bounds of
compositions, says which are drafted. Replicas over which experts are spread together are equal, so that numbers of
replicas are multiples of those (`Table.together`). Settings are those of good plans of equal replicas, and like them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.arrays import Floats, Ints, distinct
from shardwright.cost.context import Context
from shardwright.cost.iteration.lanes import Known
from shardwright.plans.plan import Plan
from shardwright.progress import stopped
from shardwright.records import record
from shardwright.search.mixed.bounds.compositions import Compositions, earliest, micro_batches
from shardwright.search.mixed.bounds.instance import Instance, instances
from shardwright.search.mixed.drafts.draft import Draft, costed, under_each_order
from shardwright.search.mixed.drafts.realise import Composition
from shardwright.search.mixed.heuristics.attempts import workshop_of
from shardwright.search.mixed.restrictions import dropped, keeps_pins, narrowed, unruled
from shardwright.search.mixed.subproblem.eligible import with_single_stages
from shardwright.search.mixed.tables.compositions import compositions
from shardwright.search.mixed.tables.model_tables import tables
from shardwright.search.mixed.tables.region import Region
from shardwright.search.mixed.tables.settings import Setting, settings
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space
from shardwright.spec.cluster import Cluster

DEEPEST = 4  # stages of a pipeline: deeper ones are mostly equal, as they use all types; chosen, 3 to 6
DRAFTED, COSTED = 4, 8  # ways of a setting that are drafted, and drafts that are costed exactly; chosen
SLOWEST = 4.0  # times what all GPUs need at full speed, in which a way must finish the batch; chosen, 2 to 10
STEPS = 16  # of the bisection for how long a way takes; numeric
Hint = tuple[int, int, int, int]  # tensor, context and expert parallelism, micro-batch


@dataclass(slots=True)
class _Best:
    """The best plan so far, of those that the question allows, and its seconds."""

    contexts: Sequence[Context]
    cluster: Cluster
    space: Space
    filters: Filters
    seconds: float
    plan: Plan | None = None
    known: Known = field(default_factory=dict)

    def offer(self, draft: Draft) -> None:
        """Cost the plans of a draft, and keep the best."""
        for plan, seconds in under_each_order(self.contexts, self.cluster, draft, self.known, self._allowed):
            if seconds is not None and seconds < self.seconds:
                self.seconds, self.plan = seconds, plan

    def _allowed(self, plan: Plan) -> bool:
        return keeps_pins(plan, self.space) and not dropped(plan, self.contexts, self.filters)


def unequal_spread(
    contexts: Sequence[Context],
    cluster: Cluster,
    space: Space,
    filters: Filters,
    hints: Iterable[Hint],
    longest: float,
) -> tuple[Plan, ...]:
    """Return the fastest such plan with its prediction, if one of less than `longest` seconds is found, in settings
    like the `hints`."""
    space, filters = narrowed(contexts, space, filters)
    usable = unruled(settings(contexts, space, filters.axes), contexts, filters)
    spread = [setting for setting in usable if setting.spread and any(_alike(setting, hint) for hint in hints)]
    made = instances(spread, tables(contexts, spread, cluster.site_links), contexts[0].job.global_batch, space)
    drafts: list[Draft] = []
    for instance in made:
        least = min([longest, *(draft.seconds for draft in drafts)])
        drafts += _drafts(instance, space, least) if instance.quick < least else ()
    best = _Best(contexts, cluster, space, filters, longest)
    for draft in sorted(drafts, key=lambda draft: draft.seconds)[:COSTED]:
        if stopped() or draft.seconds >= best.seconds:
            break
        best.offer(draft)
    return () if best.plan is None else (costed(contexts, best.plan, best.known),)


def hint_of(plan: Plan) -> Hint:
    """Return the setting of a plan whose stages have the same degrees."""
    stage = plan.replicas[0].stages[0]
    return stage.tensor_parallel, stage.context_parallel, stage.expert_parallel, plan.micro_batch


def _alike(setting: Setting, hint: Hint) -> bool:
    """Return whether a setting has stages of as many GPUs as a hint, and experts as far apart or farther, as fewer
    stages hold the model only so, with about as large micro-batches."""
    tp, cp, ep, size = hint
    near = setting.micro_batch in (size // 2, size, 2 * size)
    return near and setting.tp[0] * setting.cp == tp * cp and setting.ep >= ep


def _drafts(instance: Instance, space: Space, longest: float) -> Iterator[Draft]:
    """Yield what a setting can do within about `longest` seconds, the best first by its bound."""
    total, together = instance.total, instance.table.together
    if total % together:
        return
    longest = min(longest, SLOWEST * instance.quick)
    ways = _ways(instance, space, longest)
    seconds = ways.least_seconds(total, instance.quick, longest)
    workshop = workshop_of(instance, instance.modes)
    for way in np.argsort(seconds, kind="stable")[:DRAFTED].tolist():
        if np.isfinite(seconds[way]):
            draft = workshop.draft(ways.chosen(way, float(seconds[way])), total)
            if draft is not None:
                yield draft


def _ways(instance: Instance, space: Space, longest: float) -> _Ways:
    """Return the ways in which a setting can use all GPUs."""
    units, together = instance.table.units, instance.table.together
    most = max(int(min(units.sum(), instance.total)), together)
    region = Region(fewest=together, most=most, modes=instance.modes, link=np.inf, used=())
    counts = compositions(units, min(DEEPEST, instance.depth))
    rows = with_single_stages(instance, region, counts, space, longest)
    pure = (rows.counts > 0).sum(axis=1) == 1
    mixed, of_one = rows.take(np.flatnonzero(~pure)), rows.take(np.flatnonzero(pure))
    copies = np.where(mixed.counts > 0, units // np.maximum(mixed.counts, 1), most).min(axis=1, initial=most)
    copies = np.append(copies - copies % together, 0)  # in the last way none
    left = units - np.vstack([mixed.counts, 0 * units]) * copies[:, None]
    beside = left[:, of_one.counts.argmax(axis=1)] // of_one.stages
    return _Ways(mixed=mixed, copies=copies, of_one=of_one, beside=beside - beside % together)


@record(kw_only=False)
class _Ways:
    """Ways to use all GPUs, K + 1 of them: `copies` [K + 1] of each of K compositions over several types (`mixed`), in
    the last way none; with `beside` [K + 1, N] of each of N compositions of one type, of which a way takes the best of
    each type."""

    mixed: Compositions
    copies: Ints
    of_one: Compositions
    beside: Ints

    def least_seconds(self, total: int, low: float, high: float) -> Floats:
        """Return the seconds in which each way finishes `total` micro-batches, infinite beyond `high`."""
        return earliest(self._finished, np.full(len(self.copies), float(total)), low, high, STEPS)

    def chosen(self, way: int, seconds: float) -> tuple[Composition, ...]:
        """Return the compositions of a way that finish some micro-batches within so many seconds."""
        parts = []
        if self.copies[way]:
            size = int(micro_batches(self.mixed, seconds)[way])
            parts.append((tuple(self.mixed.counts[way].tolist()), int(self.copies[way]), size))
        sizes = micro_batches(self.of_one, seconds)
        done, kinds = sizes * self.beside[way], self.of_one.counts.argmax(axis=1)
        for kind in distinct(kinds).tolist():
            rows = np.flatnonzero(kinds == kind)
            row = int(rows[done[rows].argmax()])
            if done[row]:
                parts.append((tuple(self.of_one.counts[row].tolist()), int(self.beside[way, row]), int(sizes[row])))
        return tuple(composition for composition in parts if composition[2])

    def _finished(self, seconds: Floats) -> Floats:
        """Return the micro-batches that each way finishes within `seconds`."""
        kinds = self.of_one.counts.argmax(axis=1)
        finished = np.append(micro_batches(self.mixed, seconds[:-1]), 0) * self.copies
        done = np.stack([micro_batches(self.of_one, at) for at in seconds.tolist()]) * self.beside
        for kind in distinct(kinds).tolist():
            finished = finished + done[:, kinds == kind].max(axis=1)
        return np.asarray(finished)
