"""A scatter plot of two logarithmic axes as SVG: predicted against measured times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from shardwright.records import record
from shardwright.units import format_seconds

Point = tuple[float, float]
COLOURS = ("#3b6fb6", "#c44e52", "#55a868", "#dd8452", "#8172b3", "#937860", "#da8bc3", "#ccb974", "#64b5cd", "#8c8c8c")
SIDE, LEFT, TOP, BOTTOM, RIGHT = 520, 76, 44, 52, 168
BAND = 0.2
DOT = 4
MARGIN = 0.08  # decades around the outermost points


@record(kw_only=False)
class _Frame:
    """The square of the plot: the same range of seconds on both axes."""

    low: float
    high: float

    def x(self, seconds: float) -> float:
        return LEFT + self._share(seconds) * SIDE

    def y(self, seconds: float) -> float:
        return TOP + SIDE - self._share(seconds) * SIDE

    def _share(self, seconds: float) -> float:
        return math.log(seconds / self.low) / math.log(self.high / self.low)


def scatter(series: Mapping[str, Sequence[Point]], title: str) -> str:
    """Return a square picture of (measured, predicted) seconds, one colour a series, with the line of equality and the
    band of 20 % around it. All seconds must be positive; raises ValueError for no points."""
    values = [value for pairs in series.values() for pair in pairs for value in pair]
    if not values:
        raise ValueError("no point to draw")
    wider = 10.0**MARGIN
    frame = _Frame(min(values) / wider, max(values) * wider)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + SIDE + RIGHT} {TOP + SIDE + BOTTOM}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="26" font-size="15">{escape(title)}</text>',
        f'<clipPath id="frame"><rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}"/></clipPath>',
        _band(frame),
        *_ticks(frame),
    ]
    for place, (name, pairs) in enumerate(series.items()):
        colour = COLOURS[place % len(COLOURS)]
        parts.append(_dots(frame, pairs, colour))
        parts += _legend(place, f"{name} ({len(pairs):,})", colour)
    middle = TOP + SIDE / 2
    parts += [
        f'<rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#666"/>',
        f'<text x="{LEFT + SIDE / 2}" y="{TOP + SIDE + 40}" text-anchor="middle">measured time of an iteration</text>',
        f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">predicted</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _band(frame: _Frame) -> str:
    """Return the area of predictions within 20 % of the measurement, and the line of equality."""
    low, high = frame.low, frame.high
    corners = ((low, 1 - BAND), (high, 1 - BAND), (high, 1 + BAND), (low, 1 + BAND))
    area = " ".join(f"{frame.x(at):.1f},{frame.y(at * factor):.1f}" for at, factor in corners)
    line = f"M{frame.x(low):.1f} {frame.y(low):.1f}L{frame.x(high):.1f} {frame.y(high):.1f}"
    return f'<g clip-path="url(#frame)"><polygon points="{area}" fill="#e6e6e6"/><path d="{line}" stroke="#999"/></g>'


def _ticks(frame: _Frame) -> list[str]:
    """Return grid lines with their values on both axes: powers of ten, and 2 and 5 times them on short axes."""
    first, last = math.floor(math.log10(frame.low)), math.ceil(math.log10(frame.high))
    multiples = (1, 2, 5) if last - first <= 3 else (1,)
    values = [factor * 10.0**power for power in range(first, last + 1) for factor in multiples]
    parts = []
    for value in values:
        if not frame.low <= value <= frame.high:
            continue
        x, y, words = frame.x(value), frame.y(value), format_seconds(value)
        grid = f"M{x:.1f} {TOP}v{SIDE}M{LEFT} {y:.1f}h{SIDE}"
        parts.append(f'<path d="{grid}" stroke="#888" stroke-width="0.4"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + SIDE + 18}" text-anchor="middle" font-size="11">{words}</text>')
        parts.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end" font-size="11">{words}</text>')
    return parts


def _dots(frame: _Frame, pairs: Sequence[Point], colour: str) -> str:
    """Return the points as one path of dots; those at the same place once."""
    places = dict.fromkeys(f"M{frame.x(across):.1f} {frame.y(up):.1f}h0" for across, up in pairs)
    style = f'stroke="{colour}" stroke-width="{DOT}" stroke-linecap="round" stroke-opacity="0.55" fill="none"'
    return f'<path d="{"".join(places)}" {style}/>'


def _legend(place: int, name: str, colour: str) -> list[str]:
    x, y = LEFT + SIDE + 14, TOP + 10 + 20 * place
    return [
        f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>',
        f'<text x="{x + 10}" y="{y + 4}" font-size="11">{escape(name)}</text>',
    ]
