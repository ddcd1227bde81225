"""The picture of a plan as a value that a notebook shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.learned import default_efficiency
from shardwright.errors import SpecError
from shardwright.files import write_atomically
from shardwright.plans.check import check
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Ranking
from shardwright.reports.svg.timeline import picture


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """An SVG image, which a notebook shows."""

    svg: str

    def save(self, path: str | Path) -> None:
        """Write the image to a file. Raises SpecError where that fails."""
        write_atomically(Path(path), self.svg)

    def _repr_svg_(self) -> str:
        return self.svg


def draw(plan: Plan | Ranking, *, efficiency: Efficiency | None = None) -> Picture:
    """Return the picture of one step of a plan, of a ranking's best: which stage computes what, when.

    `efficiency` is the model of compute times, by default the one that plans are made with. Raises SpecError with
    everything that is illegal about the plan.
    """
    drawn = plan.best if isinstance(plan, Ranking) else plan
    if problems := check(drawn):
        raise SpecError(*problems)
    return Picture(picture(drawn, efficiency or default_efficiency()))
