"""A plan as a picture: which stage of each replica computes what, when, as SVG."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.iteration.timeline import Kind, TimelineEvent, closing_events, pass_events
from shardwright.cost.learned import default_efficiency
from shardwright.errors import reject
from shardwright.files import write_atomically
from shardwright.plans.check import check
from shardwright.plans.plan import Plan, Replica, Stage
from shardwright.plans.ranking import Ranking
from shardwright.reports.palette import BUBBLE, DONE, on_paper
from shardwright.reports.text.mixed import gpu_words
from shardwright.units import counted, format_seconds

LEFT, RIGHT, TOP, ROW, GAP, WIDTH = 350, 60, 70, 20, 16, 800
NARROWEST = 0.35  # units of the picture; shorter passes are drawn together with their neighbours
TICKS = 6  # at most, beside that at 0
MINUTES = 120.0  # seconds from which times have another unit, in which they are not round
ROUND = (1.0, 2.0, 5.0, 10.0)
THIN: Kind = "synchronise"  # goes on beside the passes, so that it is drawn below them


def picture(plan: Plan, efficiency: Efficiency) -> str:
    """Return the picture of one step of a legal plan: a row for each stage of each kind of replica."""
    iteration = mixed_iteration(plan, efficiency)
    rows = sum(len(replica.stages) for replica in plan.replicas)
    height = TOP + ROW * rows + GAP * (len(plan.replicas) + 2)
    scale = WIDTH / iteration.seconds
    title = f"{plan.model.name} on {gpu_words(plan)}: one step takes {format_seconds(iteration.seconds)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + RIGHT} {height}" '
        'font-family="sans-serif" font-size="11" fill="#333">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="24" font-size="15">{escape(title)}</text>',
        *_legend(),
    ]
    y = float(TOP)
    for number, replica in enumerate(plan.replicas):
        done = [*pass_events(plan, iteration, number), *closing_events(plan, iteration, number)]
        parts += _replica(plan, replica, done, y, scale)
        y += ROW * len(replica.stages) + GAP
    parts += _axis(iteration.seconds, y, scale)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> list[str]:
    parts, x = [], 12.0
    for words, hue, opacity in (*DONE.values(), BUBBLE):
        colour = f'fill="{on_paper(hue)}" fill-opacity="{opacity:g}"'
        parts.append(f'<rect x="{x:.0f}" y="38" width="10" height="10" {colour}/>')
        parts.append(f'<text x="{x + 15:.0f}" y="47">{escape(words)}</text>')
        x += 33 + 6.0 * len(words)
    return parts


def _replica(plan: Plan, replica: Replica, done: list[TimelineEvent], y: float, scale: float) -> list[str]:
    batches = counted(replica.micro_batches, "micro-batch")
    words = f"{replica.count} × {f'{replica.rows} rows, ' if plan.layered else ''}{batches}"
    parts = [f'<text x="12" y="{y + 14:.0f}">{words}</text>']
    _, hue, opacity = BUBBLE
    empty = f'fill="{on_paper(hue)}" fill-opacity="{opacity:g}"'
    for place, stage in enumerate(replica.stages):
        top = y + ROW * place
        parts.append(f'<text x="{LEFT - 6}" y="{top + 14:.0f}" text-anchor="end">{escape(_name(stage))}</text>')
        parts.append(f'<rect x="{LEFT}" y="{top:.0f}" width="{WIDTH}" height="{ROW - 3}" {empty}/>')
        parts += _strokes([event for event in done if event.stage == place], top, scale)
    return parts


def _strokes(done: list[TimelineEvent], top: float, scale: float) -> list[str]:
    """Return what a stage does as strokes, one path a kind; those in a row too short to tell apart are one."""
    runs: list[tuple[float, float, Kind]] = []
    for event in sorted(done, key=lambda event: event.start_seconds):
        start, end, kind = event.start_seconds * scale, event.end_seconds * scale, event.kind
        touches = runs and start - runs[-1][1] < NARROWEST
        if touches and runs[-1][2] == kind and runs[-1][1] - runs[-1][0] < NARROWEST:
            runs[-1] = (runs[-1][0], end, kind)
        elif end > start:
            runs.append((start, end, kind))
    lines: dict[Kind, list[str]] = {}
    for start, end, kind in runs:
        middle = top + (ROW - 3) * (0.85 if kind == THIN else 0.5)
        width = max(end - start - 0.15, 0.2)
        lines.setdefault(kind, []).append(f"M{LEFT + start:.1f} {middle:g}h{width:.1f}")
    return [
        f'<path stroke="{on_paper(DONE[kind][1])}" stroke-opacity="{DONE[kind][2]:g}" '
        f'stroke-width="{(ROW - 3) * (0.3 if kind == THIN else 1.0):g}" d="{"".join(strokes)}"/>'
        for kind, strokes in lines.items()
    ]


def _name(stage: Stage) -> str:
    layers = f"layers {stage.layers[0][0]}–{stage.layers[0][1] - 1}" if len(stage.layers) == 1 else "layers by turns"
    return f"{stage.tensor_parallel} × {stage.gpu}, {layers if stage.layer_count else 'no layer'}"


def _axis(seconds: float, y: float, scale: float) -> list[str]:
    parts = [f'<line x1="{LEFT}" y1="{y:.0f}" x2="{LEFT + WIDTH}" y2="{y:.0f}" stroke="#666"/>']
    for at in ticks(seconds):
        x, label = LEFT + at * scale, "0" if not at else format_seconds(at) if at < MINUTES else f"{at:,.0f} s"
        parts.append(f'<line x1="{x:.1f}" y1="{y:.0f}" x2="{x:.1f}" y2="{y + 5:.0f}" stroke="#666"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.0f}" text-anchor="middle">{label}</text>')
    return parts


def ticks(seconds: float) -> list[float]:
    """Return 0 and the multiples up to `seconds` of the least round time, 1, 2 or 5 times a power of ten, of which
    there are not too many."""
    power = 10.0 ** math.floor(math.log10(seconds / TICKS))
    step = next(factor * power for factor in ROUND if seconds / (factor * power) <= TICKS)
    return [number * step for number in range(math.floor(seconds / step) + 1)]


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
    reject(check(drawn))
    return Picture(picture(drawn, efficiency or default_efficiency()))
