"""The colours of all charts: what a GPU does in time and what its memory holds have one colour wherever they are drawn,
on paper, on a light screen and on a dark one.

Six hues are those of Paul Tol's "bright" scheme (SRON/EPS/TN/09-002), which readers who confuse red and green tell
apart; on a dark screen they are lighter.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.cost.iteration.timeline import Kind

HUES: Mapping[str, tuple[str, str]] = {
    "blue": ("#4477aa", "#77aadd"),
    "red": ("#ee6677", "#ff8f9c"),
    "green": ("#228833", "#5fc06f"),
    "yellow": ("#ccbb44", "#ddcc77"),
    "cyan": ("#66ccee", "#88ddff"),
    "purple": ("#aa3377", "#d07ab8"),
    "grey": ("#888", "#aaa"),
    "orange": ("#ee8866", "#ffaa88"),
}  # on a light screen, on a dark one

DONE: Mapping[Kind, tuple[str, str, float]] = {
    "forward": ("forward", "blue", 0.55),
    "recompute": ("recomputation", "orange", 1.0),
    "backward": ("backward", "blue", 1.0),
    "communicate": ("communication inside the pass", "yellow", 1.0),
    "synchronise": ("gradients and weights between replicas", "purple", 0.8),
    "optimizer": ("optimizer", "green", 0.9),
}  # the words, hue and opacity of what a stage does in time
BUBBLE = ("pipeline bubble", "grey", 0.25)

TERMS: Mapping[str, tuple[str, float]] = {
    "forward_seconds": DONE["forward"][1:],
    "backward_seconds": DONE["backward"][1:],
    "recompute_seconds": DONE["recompute"][1:],
    "tensor_parallel_seconds": DONE["communicate"][1:],
    "context_parallel_seconds": ("yellow", 0.7),
    "expert_parallel_seconds": ("yellow", 0.4),
    "pipeline_seconds": ("cyan", 1.0),
    "bubble_seconds": BUBBLE[1:],
    "data_parallel_seconds": DONE["synchronise"][1:],
    "optimizer_seconds": DONE["optimizer"][1:],
    "framework_seconds": ("red", 1.0),
}  # hue and opacity of what an iteration's time goes into
MEMORY: Mapping[str, tuple[str, float]] = {
    "weights": ("blue", 1.0),
    "gradients": DONE["synchronise"][1:],
    "optimizer": DONE["optimizer"][1:],
    "activations": ("orange", 1.0),
    "logits": ("red", 1.0),
    "buffers": ("yellow", 1.0),
    "context": ("grey", 1.0),
}  # hue and opacity of what fills a GPU's memory


def numbered(colour: tuple[str, float]) -> tuple[int, float]:
    """Return a colour as a chart of a page asks for it: the number of its hue, and its opacity."""
    return number_of(colour[0]), colour[1]


def number_of(hue: str) -> int:
    """Return the number of a hue, by which a chart of a page asks for it."""
    return list(HUES).index(hue)


def on_paper(hue: str) -> str:
    """Return a hue as a picture on white has it."""
    return HUES[hue][0]


def style() -> str:
    """Return the hues as variables of a style sheet, for both colour schemes."""
    light, dark = ("; ".join(f"--c{at}: {pair[side]}" for at, pair in enumerate(HUES.values())) for side in (0, 1))
    return f":root {{ {light}; }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}; }} }}\n"
