"""The page on how well operators and collectives are predicted that the fits had not seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tools.refit.collective_rows import Series
from tools.refit.collectives import left_out_collectives, left_out_networks, random_collectives
from tools.refit.holdout import SEED, TEST_SHARE, LeftOut, learning_curve, left_out, random_error
from tools.refit.operators import FitTable

from shardwright.reports.accuracy import markdown_table

COMMAND = "python -m tools.refit operators DIR --evaluate --page docs/calibration-operators.md"
FAMILY_WORDS = {
    "gemm": "Matrix products",
    "attention": "Fused attention",
    "memory": "Operators that memory traffic bounds",
}
INTRODUCTION = """# Operators and collectives that the fits had not seen

Errors are medians of |predicted time / measured time - 1| over rows with sizes of training (products: 2 GFLOP and 256
rows or more; collectives: 1 MiB or more). *Left out*: the fit saw nothing of the GPU; sources measure by different
methods, and the method's offset, learned on other GPUs, is part of the prediction. *30 shapes*: the same fit with one
factor, taken from 30 shapes of the new GPU. *Bias*: log(measured speed / predicted speed). How the fits are made, and
from what: [Calibration](calibration.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyScore:
    """Errors of one family: on random rows (all sizes, sizes of training), on GPUs left out, and by the number of GPUs
    seen."""

    random: tuple[float, float]
    left_out: Sequence[LeftOut]
    curve: Sequence[tuple[int, float]]

    @property
    def macro(self) -> float:
        """The mean over GPUs of the error on a GPU that was left out."""
        return float(np.mean([gpu.error for gpu in self.left_out]))


def family_score(family: str, rows: FitTable) -> FamilyScore:
    """Return the errors of one family."""
    return FamilyScore(
        random=random_error(family, rows), left_out=left_out(family, rows), curve=learning_curve(family, rows)
    )


def operators_page(scores: Mapping[str, FamilyScore], series: Sequence[Series]) -> str:
    """Return the page as Markdown."""
    parts = [f"<!-- Written by `{COMMAND}`. -->", INTRODUCTION, _summary(scores)]
    for family, score in scores.items():
        parts += [f"## {FAMILY_WORDS[family]}", _by_gpu(score)]
        if score.curve:
            rows = [[f"{count}", _percent(error)] for count, error in score.curve]
            parts += [
                "Error on a GPU that was not seen, by the number of GPUs that were (drawn at random, three draws):",
                markdown_table(("GPUs seen", "error"), rows),
            ]
    if series:
        parts += ["## Collectives", *_collectives(series)]
    return "\n\n".join(parts)


def _summary(scores: Mapping[str, FamilyScore]) -> str:
    rows = []
    for family, score in scores.items():
        errors = [gpu.error for gpu in score.left_out]
        calibrated = [gpu.calibrated_error for gpu in score.left_out]
        rows.append(
            [
                FAMILY_WORDS[family],
                _percent(score.random[1]),
                _percent(score.macro),
                _percent(float(np.median(errors))),
                _percent(float(np.mean(calibrated))),
            ]
        )
    header = ("family", "random rows", "GPU left out (mean over GPUs)", "(median over GPUs)", "30 shapes (mean)")
    return markdown_table(header, rows)


def _by_gpu(score: FamilyScore) -> str:
    rows = [
        [gpu.gpu, f"{gpu.rows:,}", _percent(gpu.error), _percent(gpu.calibrated_error), f"{gpu.bias:+.2f}"]
        for gpu in score.left_out
    ]
    return markdown_table(("GPU left out", "rows", "error", "30 shapes", "bias"), rows)


def _collectives(series: Sequence[Series]) -> Iterator[str]:
    rows, error = random_collectives(series, share=TEST_SHARE, seed=SEED)
    inside, across = left_out_collectives(series), left_out_networks(series)
    yield (
        f"Within a machine or NVLink domain: {_percent(error)} on {rows:,} random rows; with a GPU left out "
        f"{_means(inside, 'GPUs')}. Machines on PCIe differ by how their slots are joined, which the name of a GPU "
        "does not say: measure them with `shardwright profile`. The rates of cards that send through the host are read "
        "off these rows, so those of the L40S and the RTX3090 are not unseen."
    )
    yield _scores("GPU left out", inside)
    if across:
        yield f"All-reduces between machines or domains, each source left out: {_means(across, 'sources')}."
        yield _scores("left out", across)


def _means(scores: Mapping[str, tuple[int, float]], of: str) -> str:
    errors = [error for _, error in scores.values()]
    return (
        f"{_percent(float(np.mean(errors)))} averaged over {of}, {_percent(float(np.median(errors)))} on the middle one"
    )


def _scores(what: str, scores: Mapping[str, tuple[int, float]]) -> str:
    return markdown_table(
        (what, "rows", "error"), [[name, f"{n:,}", _percent(error)] for name, (n, error) in scores.items()]
    )


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f} %"
