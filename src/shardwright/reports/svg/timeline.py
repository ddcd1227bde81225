"""A plan as a picture: which stage of each replica computes what, when, as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.iteration.mixed import ReplicaTime, mixed_iteration, pipeline_timeline
from shardwright.cost.learned import default_efficiency
from shardwright.cost.pipeline.schedule import FORWARD
from shardwright.cost.pipeline.simulate import Timeline
from shardwright.errors import SpecError
from shardwright.files import write_atomically
from shardwright.plans.check import check
from shardwright.plans.plan import Plan, Replica, Stage
from shardwright.plans.ranking import Ranking
from shardwright.reports.text.mixed import gpu_words
from shardwright.units import counted, format_seconds

COLOURS = (
    ("#3b6fb6", "#9dbbe0"),
    ("#dd8452", "#f2c9ae"),
    ("#55a868", "#aed6b8"),
    ("#8172b3", "#c6bfe0"),
    ("#937860", "#d0c2b4"),
    ("#c44e52", "#e7b0b2"),
)  # of a GPU type: backward, forward
LEFT, RIGHT, TOP, ROW, GAP, WIDTH = 350, 60, 70, 20, 16, 800
NARROWEST = 0.35  # units of the picture; shorter passes are drawn together with their neighbours
TICKS = 5


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
        *_legend(plan),
    ]
    y = float(TOP)
    for replica, times in zip(plan.replicas, iteration.replicas, strict=True):
        parts += _replica(plan, replica, times, y, scale)
        y += ROW * len(replica.stages) + GAP
    parts += _axis(iteration.seconds, y, scale)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(plan: Plan) -> list[str]:
    parts, x = [], 12.0
    for name, (dark, light) in zip(plan.gpus_by_type, COLOURS, strict=False):
        parts.append(f'<rect x="{x:.0f}" y="38" width="10" height="10" fill="{light}"/>')
        parts.append(f'<rect x="{x + 10:.0f}" y="38" width="10" height="10" fill="{dark}"/>')
        words = f"{name} forward, backward"
        parts.append(f'<text x="{x + 25:.0f}" y="47">{escape(words)}</text>')
        x += 45 + 6.0 * len(words)
    return parts


def _replica(plan: Plan, replica: Replica, times: ReplicaTime, y: float, scale: float) -> list[str]:
    when = pipeline_timeline(plan, replica, times)
    colours = dict(zip(plan.gpus_by_type, COLOURS, strict=False))
    batches = counted(replica.micro_batches, "micro-batch")
    words = f"{replica.count} × {f'{replica.rows} rows, ' if plan.layered else ''}{batches}"
    parts = [f'<text x="12" y="{y + 14:.0f}">{words}</text>']
    for place, stage in enumerate(replica.stages):
        top = y + ROW * place
        parts.append(f'<text x="{LEFT - 6}" y="{top + 14:.0f}" text-anchor="end">{escape(_name(stage))}</text>')
        parts.append(f'<rect x="{LEFT}" y="{top:.0f}" width="{WIDTH}" height="{ROW - 3}" fill="#f4f4f4"/>')
        parts += _passes(when, place, top, scale, colours[stage.gpu])
    return parts


def _passes(when: Timeline, rank: int, top: float, scale: float, colours: tuple[str, str]) -> list[str]:
    """Return the passes of a stage as strokes, one path a colour; those in a row too short to tell apart are one."""
    mine = when.rank == rank
    starts, ends, kinds = when.start_seconds[mine] * scale, when.end_seconds[mine] * scale, when.kind[mine]
    runs: list[tuple[float, float, int]] = []
    for start, end, kind in zip(starts.tolist(), ends.tolist(), kinds.tolist(), strict=True):
        touches = runs and start - runs[-1][1] < NARROWEST
        if touches and runs[-1][2] == kind and runs[-1][1] - runs[-1][0] < NARROWEST:
            runs[-1] = (runs[-1][0], end, kind)
        else:
            runs.append((start, end, kind))
    middle = top + (ROW - 3) / 2
    lines: dict[str, list[str]] = {}
    for start, end, kind in runs:
        width = max(end - start - 0.15, 0.2)
        lines.setdefault(colours[1 if kind == FORWARD else 0], []).append(f"M{LEFT + start:.1f} {middle:g}h{width:.1f}")
    return [
        f'<path stroke="{colour}" stroke-width="{ROW - 3}" d="{"".join(strokes)}"/>'
        for colour, strokes in lines.items()
    ]


def _name(stage: Stage) -> str:
    layers = f"layers {stage.layers[0][0]}–{stage.layers[0][1] - 1}" if len(stage.layers) == 1 else "layers by turns"
    return f"{stage.tensor_parallel} × {stage.gpu}, {layers if stage.layer_count else 'no layer'}"


def _axis(seconds: float, y: float, scale: float) -> list[str]:
    parts = [f'<line x1="{LEFT}" y1="{y:.0f}" x2="{LEFT + WIDTH}" y2="{y:.0f}" stroke="#666"/>']
    for tick in range(TICKS + 1):
        at = seconds * tick / TICKS
        x, label = LEFT + at * scale, format_seconds(at) if at else "0"
        parts.append(f'<line x1="{x:.1f}" y1="{y:.0f}" x2="{x:.1f}" y2="{y + 5:.0f}" stroke="#666"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.0f}" text-anchor="middle">{label}</text>')
    return parts


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
