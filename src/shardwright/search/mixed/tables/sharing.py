"""How the replicas of a plan share gradients, weights and optimizer state, and what of that runs beside computation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.cost.strategies import UNSHARDED, ZERO1
from shardwright.search.space.axes import OFFLOADS, Space

AXES = frozenset({"sharding", "offload", "overlap_grad", "overlap_param"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Values of the axes of these names, as replicas have them that are several (`of`)."""

    sharding: int = ZERO1
    offload: float = 0.0
    overlap_grad: bool = True
    overlap_param: bool = True

    @property
    def overlaps(self) -> tuple[bool, bool]:
        """Whether the reduction of gradients and the gathering of weights run beside passes."""
        return self.overlap_grad, self.overlap_param

    def of(self, copies: int) -> Sharing:
        """Return what so many replicas have of it: a single one has none to share with, and shards only to keep a part
        of its state in host memory."""
        if copies > 1:
            return self
        alone = ZERO1 if self.offload else UNSHARDED
        return Sharing(sharding=alone, offload=self.offload, overlap_grad=False, overlap_param=False)

    def within(self, space: Space, copies: int) -> bool:
        """Return whether so many replicas keep the pins."""
        own = self.of(copies)
        return all(getattr(own, axis) in space.pins.get(axis, (getattr(own, axis),)) for axis in AXES)


USUAL = Sharing()  # the fastest that fits in least memory, but for state in host memory


def sharings(space: Space, ruled: frozenset[str]) -> list[Sharing]:
    """Return the ways to share that the pins leave and that may be best: of those that differ in overlap alone, the one
    with most, unless rules speak of it (`ruled` are the axes of which they do)."""
    spoken = AXES & (ruled | set(space.pins))
    if not spoken:
        return [USUAL]
    legal = [each for each in _legal(space, spoken) if each.within(space, 2)]
    if ruled & {"overlap_grad", "overlap_param"}:
        return legal
    most = {(each.sharding, each.offload): each for each in sorted(legal, key=lambda each: sum(each.overlaps))}
    best = [each for each in most.values() if all(each.overlaps)]
    return best if best and "sharding" not in spoken else list(most.values())


def _legal(space: Space, spoken: frozenset[str]) -> Iterator[Sharing]:
    offloads = space.pins.get("offload", OFFLOADS if "offload" in spoken else (0.0,))
    for sharding in (ZERO1, UNSHARDED):
        for offload in (float(value) for value in offloads if sharding == ZERO1 or not value):
            for grad, param in ((False, False), (True, False), (True, True)):
                if sharding == ZERO1 or not param:
                    yield Sharing(sharding=sharding, offload=offload, overlap_grad=grad, overlap_param=param)
