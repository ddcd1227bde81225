"""Draws docs/llama-2-70b.svg: where the time of the best plan goes, beside what an expert would try.

.venv/bin/python docs/make_picture.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import shardwright
from shardwright.files import write_atomically
from shardwright.plans.plan import Plan
from shardwright.reports import palette
from shardwright.reports.text.outcome import TERMS

LEFT, TOP, ROW, BAR, WIDTH = 420, 64, 34, 22, 560


def main() -> None:
    """Plan Llama-2-70B on 256 A800s and write the picture."""
    model, cluster = shardwright.load_model("llama-2-70b"), shardwright.load_cluster("32x8xA800-SXM-80")
    ranking = shardwright.plan(model, cluster, shardwright.make_job(global_batch=512, seq_len=4096))
    rows = [("best plan", ranking.best)]
    rows += [(entry.rule.split(" (")[0], entry.plan) for entry in ranking.baselines if entry.plan is not None]
    write_atomically(Path(__file__).with_name("llama-2-70b.svg"), svg(rows))


def svg(rows: list[tuple[str, Plan]]) -> str:
    """Return one stacked bar a plan, seconds of an iteration by cause."""
    longest = max(plan.iteration_seconds for _, plan in rows)
    height = TOP + ROW * len(rows) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 70} {height}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="12" y="22" font-size="15">Llama-2-70B on 256 A800: seconds of an iteration</text>',
        *legend(rows),
    ]
    for place, (name, plan) in enumerate(rows):
        parts += bar(name, plan, TOP + ROW * place, WIDTH / longest)
    return "\n".join([*parts, "</svg>"]) + "\n"


def legend(rows: list[tuple[str, Plan]]) -> list[str]:
    """Return the names, in their colours, of the causes that take 1 % of a plan or more."""
    parts, x = [], 12.0
    for term, name in TERMS.items():
        if all(getattr(plan.predicted.time, term) < 0.01 * plan.iteration_seconds for _, plan in rows):
            continue
        short = name.removesuffix(" communication")
        parts.append(f'<rect x="{x:.0f}" y="34" width="10" height="10" {fill(term)}/>')
        parts.append(f'<text x="{x + 14:.0f}" y="43" font-size="11">{escape(short)}</text>')
        x += 26 + 6.0 * len(short)
    return parts


def bar(name: str, plan: Plan, y: float, scale: float) -> list[str]:
    """Return one bar with its label and length."""
    parts, x = [f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>'], float(LEFT)
    for term in TERMS:
        width = getattr(plan.predicted.time, term) * scale
        if width > 0.2:
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" {fill(term)}/>')
        x += width
    return [*parts, f'<text x="{x + 6:.1f}" y="{y + 15}">{plan.iteration_seconds:.1f} s</text>']


def fill(term: str) -> str:
    """Return the colour of a term, as all charts have it."""
    hue, opacity = palette.TERMS[term]
    return f'fill="{palette.on_paper(hue)}" fill-opacity="{opacity}"'


if __name__ == "__main__":
    main()
