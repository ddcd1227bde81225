"""A calibration on a terminal and as a JSON document: what moved, how sure it is now, what it says nothing about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.cost.site.calibration import KINDS, SiteCalibration, SiteRun, effect_of, left_out_means
from shardwright.cost.site.setting import REACHES
from shardwright.reports.text.layout import WIDTH, labelled, table
from shardwright.reports.words import KIND_WORDS
from shardwright.units import clock, format_seconds

if TYPE_CHECKING:
    from shardwright.runs.state import GoodState

HEADER = ("run", "GPUs", "predicted", "measured", "off", "after others", "after all")
LEGEND = "off: measured over predicted. after others: what stays once the other runs move it; after all: this one too."
BETWEEN = {"machines": "several machines", "sites": "several sites"}


def calibration_text(
    calibration: SiteCalibration, states: Mapping[str, GoodState], path: Path, width: int = WIDTH
) -> str:
    """Return what a calibration does; `states` are the good states of runs that were read from logs, by name."""
    rows = [
        _row(run, place, left)
        for place, (run, left) in enumerate(zip(calibration.runs, _left(calibration), strict=True))
    ]
    lines = [labelled(name, words, width) for name, words in _answers(calibration, path)]
    read = [labelled("read", f"{name}: {state_words(state)}", width) for name, state in states.items()]
    head = f"Calibrated on {about(calibration)}."
    return "\n\n".join(
        [head, *(["\n".join(read)] if read else []), table(HEADER, rows, words=("run",)), LEGEND, "\n".join(lines)]
    )


def _row(run: SiteRun, place: int, left: tuple[float, float, float]) -> tuple[str, ...]:
    seconds = format_seconds(run.predicted_seconds), format_seconds(run.measured_seconds)
    return name_of(run, place), str(run.setting.gpus), *seconds, *(f"{math.expm1(value):+.1%}" for value in left)


def about(calibration: SiteCalibration) -> str:
    """Return what a calibration rests on, in words."""
    runs, twins = calibration.runs, sum(run.twins for run in calibration.runs)
    settings = [run.setting for run in runs]
    places = sorted({f"{setting.gpu_types} with {setting.framework}" for setting in settings})
    kinds = sorted({f"{setting.family} ({setting.kind})" for setting in settings})
    sizes = sorted({setting.gpus for setting in settings})
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    count += f" ({twins} with twins, which count once)" if twins > len(runs) else ""
    span = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"{count} of {', '.join(kinds)} on {span} {', '.join(places)}"


def name_of(run: SiteRun, place: int) -> str:
    """Return what a run is called: by its model where that is known, and its split."""
    setting = run.setting
    return f"{run.model or f'run {place + 1}'} tp {setting.tp} pp {setting.pp} mb {setting.micro_batch}"


def _left(calibration: SiteCalibration) -> list[tuple[float, float, float]]:
    """Return log(measured / predicted) of every run as it is, after the other runs, and after all."""
    others = left_out_means(calibration)
    every = [math.log(effect_of(calibration, run.setting).factor) for run in calibration.runs]
    return [
        (run.log_ratio, run.log_ratio - float(other), run.log_ratio - mean)
        for run, other, mean in zip(calibration.runs, others, every, strict=True)
    ]


def _answers(calibration: SiteCalibration, path: Path) -> list[tuple[str, str]]:
    effects = [effect_of(calibration, run.setting) for run in calibration.runs]
    factors = [effect.factor for effect in effects]
    low, high = min(factors), max(factors)
    moved = f"{low - 1.0:+.0%}" if round(low, 2) == round(high, 2) else f"{low - 1.0:+.0%} to {high - 1.0:+.0%}"
    narrower = float(np.median([effect.narrower for effect in effects]))
    profiles = ", ".join(calibration.profiles)
    rows = {
        "moved": f"seconds of plans like these by {moved}",
        "sure": f"80% intervals of plans like these are {narrower:.0%} as wide as without",
        "check": _check_words(calibration) if len(calibration.runs) > 1 else "",
        "silent": "; ".join(silent_words(calibration)),
        "profile": f"it is what is left beyond the profile of {profiles}" if profiles else "",
        "next": f"shardwright plan … --calibration {path}",
    }
    return [(name, words) for name, words in rows.items() if words]


def _check_words(calibration: SiteCalibration) -> str:
    before = np.median([abs(math.expm1(run.log_ratio)) for run in calibration.runs])
    after = np.median([abs(math.expm1(left[1])) for left in _left(calibration)])
    return f"median error of each run predicted by the others: {before:.1%} before, {after:.1%} after"


def silent_words(calibration: SiteCalibration) -> list[str]:
    """Return what a calibration says nothing about, in words."""
    settings = [run.setting for run in calibration.runs]
    have = {setting.kind for setting in settings}
    families = sorted({setting.family for setting in settings})
    precisions = sorted({setting.precision for setting in settings})
    kinds = [KIND_WORDS[kind] for kind in KINDS if kind not in have]
    far = max(REACHES.index(setting.reach) for setting in settings)
    shared = (
        f"{' and '.join(kinds)}, families other than {', '.join(families)}, and other precisions than "
        f"{', '.join(precisions)}: only what all runs share"
    )
    return [
        *(f"plans on {BETWEEN[reach]}: refused" for reach in REACHES[far + 1 :]),
        "other GPUs and frameworks: refused",
        *([shared] if kinds else []),
        "memory: it moves seconds alone",
    ]


def state_words(state: GoodState) -> str:
    """Return the good state of a run in words, and what it leaves out."""
    took, low, high = (
        clock(value, like=state.seconds) for value in (state.seconds, state.low_seconds, state.high_seconds)
    )
    left = ", ".join(f"{out.steps} {name}" for name, out in state.left_out.items())
    parts = (
        f"{took} an iteration (middle 80%: {low} to {high}) over {state.steps:,} iterations",
        f"left out: {left}" if left else "",
        f"{state.bad_share:.0%} of steps straggle or stall" if state.bad_share > 0.005 else "",
    )
    return "; ".join(part for part in parts if part)


def calibration_document(calibration: SiteCalibration, states: Mapping[str, GoodState], path: Path) -> dict[str, Any]:
    """Return the same figures as plain JSON data."""
    effects = [effect_of(calibration, run.setting) for run in calibration.runs]
    return {
        "calibration": str(path),
        "about": about(calibration),
        "runs": [
            {
                "name": name_of(run, place),
                "gpus": run.setting.gpus,
                "predicted_seconds": run.predicted_seconds,
                "measured_seconds": run.measured_seconds,
                "twins": run.twins,
                "factor": effect.factor,
                "interval_as_wide": effect.narrower,
                "left_by_others": math.exp(left[1]),
            }
            for place, (run, effect, left) in enumerate(zip(calibration.runs, effects, _left(calibration), strict=True))
        ],
        "silent": silent_words(calibration),
        "read": {
            name: {
                "seconds": state.seconds,
                "low_seconds": state.low_seconds,
                "high_seconds": state.high_seconds,
                "spread": state.spread,
                "steps": state.steps,
                "bad_share": state.bad_share,
                "left_out": {reason: out.steps for reason, out in state.left_out.items()},
            }
            for name, state in states.items()
        },
    }
