"""A simulation of spot machines as a picture: machines at hand, tokens a second of each strategy, hours by cause."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shardwright.recovery.simulation.replay import CAUSES, TraceOutcome
from shardwright.recovery.simulation.traces import Trace
from shardwright.units import SECONDS_PER_HOUR

COLOURS = {
    "useful work": "#55a868",
    "fewer machines": "#ccb974",
    "waiting": "#8c8c8c",
    "re-forming": "#dd8452",
    "moving state": "#3b6fb6",
    "work done anew": "#c44e52",
    "snapshots": "#8172b3",
}
LEFT, TOP, WIDTH, ROW, GAP, BAR = 210, 70, 800, 46, 16, 20
LEAST_USEFUL = 0.8  # hours of useful work below this part of all are cut off, so that one sees the rest


def picture(trace: Trace, outcomes: Sequence[TraceOutcome]) -> str:
    """Return the picture: over the time of the trace, then by cause."""
    rows = len(outcomes) + 1
    height = TOP + rows * (ROW + GAP) + 70 + len(outcomes) * (BAR + 8) + 30
    title = f"Trace {trace.name}: {trace.hours / 24:.3g} days of spot machines"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 90} {height}" '
        'font-family="sans-serif" font-size="11" fill="#333">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="{LEFT}" y="{TOP - 10}">machines that could be had, then tokens a second of each strategy</text>',
    ]
    moments = list(zip((trace.seconds - trace.seconds[0]).tolist(), trace.machines.sum(axis=1).tolist(), strict=True))
    parts += _row("machines at hand", moments, trace, TOP, "#64b5cd")
    for number, item in enumerate(outcomes, 1):
        parts += _row(item.strategy, item.rates, trace, TOP + number * (ROW + GAP), COLOURS["useful work"])
    y = TOP + rows * (ROW + GAP)
    parts += _days(trace, y)
    return "\n".join([*parts, *_bars(trace, outcomes, y + 50), "</svg>"]) + "\n"


def _row(name: str, steps: Sequence[tuple[float, float]], trace: Trace, y: float, colour: str) -> list[str]:
    """Return what is there from when on as a filled line of steps."""
    most, begin = max(value for _, value in steps) or 1.0, float(steps[0][0])
    scale = WIDTH / (trace.hours * SECONDS_PER_HOUR)
    path, last = [f"M{LEFT} {y + ROW}"], -1.0
    for time, value in steps:
        x, top = LEFT + (time - begin) * scale, y + ROW - value / most * ROW
        if f"{top:.1f}" != f"{last:.1f}":
            path.append(f"H{x:.1f}V{top:.1f}")
            last = top
    path.append(f"H{LEFT + WIDTH}V{y + ROW}Z")
    return [
        f'<text x="{LEFT - 8}" y="{y + ROW / 2 + 4}" text-anchor="end">{escape(name)}</text>',
        f'<path d="{"".join(path)}" fill="{colour}" fill-opacity="0.6"/>',
        f'<path d="M{LEFT} {y + ROW}h{WIDTH}" stroke="#666" stroke-width="0.6"/>',
    ]


def _days(trace: Trace, y: float) -> list[str]:
    days = int(trace.hours // 24)
    at = [LEFT + WIDTH * 24 * day / trace.hours for day in range(days + 1)]
    return [f'<text x="{x:.0f}" y="{y}" text-anchor="middle">day {day}</text>' for day, x in enumerate(at)]


def _bars(trace: Trace, outcomes: Sequence[TraceOutcome], y: float) -> list[str]:
    """Return a bar for each strategy: its hours by cause."""
    parts, x = [], float(LEFT)
    for cause in CAUSES:
        parts.append(f'<rect x="{x:.0f}" y="{y - 24}" width="10" height="10" fill="{COLOURS[cause]}"/>')
        parts.append(f'<text x="{x + 14:.0f}" y="{y - 15}">{escape(cause)}</text>')
        x += 30 + 6.0 * len(cause)
    scale = WIDTH / (trace.hours * (1.0 - LEAST_USEFUL))
    for number, item in enumerate(outcomes):
        top, x = y + number * (BAR + 8), float(LEFT)
        parts.append(f'<text x="{LEFT - 8}" y="{top + 14}" text-anchor="end">{escape(item.strategy)}</text>')
        cut = trace.hours * LEAST_USEFUL
        for cause in CAUSES:
            hours, gone = item.hours[cause], min(cut, item.hours[cause])
            cut -= gone
            width = max(hours - gone, 0.0) * scale
            if width > 0.2:
                parts.append(
                    f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[cause]}"/>'
                )
            x += width
    under = y + len(outcomes) * (BAR + 8) + 14
    parts.append(f'<text x="{LEFT}" y="{under}">the last {1 - LEAST_USEFUL:.0%} of the hours, by cause</text>')
    return parts
