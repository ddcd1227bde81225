"""Which ranks of a plan are rehearsed: one of each kind, as most ranks do what another one does."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.errors import bad
from shardwright.plans.plan import Plan
from shardwright.runtime.layout.places import Place, places_of


def ranks_of(plan: Plan, asked: Sequence[int] = ()) -> tuple[Place, ...]:
    """Return the places of the ranks `asked` for, or of one rank of each kind: of every shape of replica the first and
    the last stage and one between of each GPU type, that with most layers. Raises SpecError for a rank that the plan
    does not have."""
    places = places_of(plan)
    for rank in asked:
        if not 0 <= rank < len(places):
            raise bad(f"`rank={rank}`", f"the plan has ranks 0 to {len(places) - 1}", "name one of these")
    if asked:
        return tuple(places[rank] for rank in dict.fromkeys(asked))
    known: dict[object, Place] = {}
    for place in places:
        if (place.copy, place.context_rank, place.tensor_rank) == (0, 0, 0) and _stands_for_others(plan, place):
            replica = plan.replicas[place.replica]
            known.setdefault((replica.stages, place.sizes, replica.state, place.stage), place)
    return tuple(sorted(known.values(), key=lambda place: place.rank))


def _stands_for_others(plan: Plan, place: Place) -> bool:
    """Whether a place is at an end of its pipeline, or has most layers of those between with its GPU type."""
    if place.stage in (0, place.depth - 1):
        return True
    stages = plan.replicas[place.replica].stages
    between = [number for number in range(1, place.depth - 1) if stages[number].gpu == place.gpu]
    return place.stage == max(between, key=lambda number: (stages[number].layer_count, -number))
