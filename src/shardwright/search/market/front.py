"""The Pareto front: points in hours, dollars and preemptions that no other point is as good as in all three."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from shardwright.arrays import Floats

Payload = TypeVar("Payload")
Point = tuple[float, float, float]


@dataclass(slots=True)
class Front(Generic[Payload]):
    """The best points so far, each with what belongs to it."""

    points: list[tuple[Point, Payload]] = field(default_factory=list)

    def offer(self, point: Point, payload: Payload) -> bool:
        """Take in a point unless one is as good; drop those that it is as good as. Return whether it went in."""
        if any(_as_good(known, point) for known, _ in self.points):
            return False
        self.points = [(known, kept) for known, kept in self.points if not _as_good(point, known)]
        self.points.append((point, payload))
        return True

    def cuts(self, slopes: Floats) -> Floats:
        """Return, for rays t · slopes [N, 3], the t from which some point of the front is as good, [N]; infinite where
        none ever is."""
        cut = np.full(len(slopes), np.inf)
        safe = np.where(slopes > 0.0, slopes, 1.0)
        for point, _ in self.points:
            values = np.array(point)
            reached = np.where(slopes > 0.0, values / safe, np.where(values <= 0.0, 0.0, np.inf))
            cut = np.minimum(cut, reached.max(axis=1))
        return cut

    def sorted(self) -> list[tuple[Point, Payload]]:
        """Return the points, fastest first."""
        return sorted(self.points, key=lambda entry: entry[0])


def _as_good(point: Point, other: Point) -> bool:
    return all(a <= b for a, b in zip(point, other, strict=True))
