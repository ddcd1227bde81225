"""The table of published runs that predictions cite, and the width of intervals, both from held-out predictions."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

import numpy as np
from tools.refit.crossvalidate import HeldOutPredictions, groups

from shardwright.arrays import Floats
from shardwright.cost.trust.evidence import DOUBLINGS, FLAGS, NAMES, Conditions, Published, distances
from shardwright.cost.trust.interval import FARTHEST, Spread
from shardwright.spec.catalog.frameworks import framework_names
from shardwright.validation.case import Case
from shardwright.validation.forecast import conditions_of_case

LEAST = 0.02  # of a log error at distance 0
PSEUDO_RUNS = 12.0  # of all frameworks together, that each framework's quantiles lean on
GROWTHS = np.linspace(0.0, 2.0, 41)
TAIL = 0.1
STAMP = (2020, 1, 1, 0, 0, 0)


def evidence_table(cases: Sequence[Case], in_domain: HeldOutPredictions) -> Published:
    """Return the published runs as columns, with the errors of predictions that had not seen them."""
    settings = [conditions_of_case(case) for case in cases]
    seconds = np.array([case.run.seconds for case in cases], dtype=float)
    tokens = np.array([case.job.tokens_per_iteration for case in cases], dtype=float)
    return Published(
        names=np.array([[getattr(setting, name) for name in NAMES] for setting in settings]),
        flags=np.array([[getattr(setting, name) for name in FLAGS] for setting in settings]),
        sizes=np.log2([[getattr(setting, name) for name in DOUBLINGS] for setting in settings]),
        model=np.array([case.run.model for case in cases]),
        source=np.array([case.run.source for case in cases]),
        strategy=np.array([_words(case) for case in cases]),
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        log_error=np.log(seconds / in_domain.seconds),
    )


def _words(case: Case) -> str:
    """Return the strategy of a run in short: "tp 4 pp 8 dp 16, micro-batch 1"."""
    if case.plan is not None:
        return f"{len(case.plan.replicas)} kinds of replicas, micro-batch {case.plan.micro_batch}"
    row = case.row
    degrees = " ".join(f"{name} {row[name]}" for name in ("tp", "cp", "pp", "ep", "dp") if int(row[name]) > 1)
    return f"{degrees or 'one GPU'}, micro-batch {row['micro_batch']}"


def held_out_distances(cases: Sequence[Case], runs: Published, protocol: str) -> Floats:
    """Return how far each case is from the nearest run that its prediction had seen, [N]; NaN where it is not held
    out."""
    far = np.full(len(cases), np.nan)
    settings = [conditions_of_case(case) for case in cases]
    for left_out in groups(cases, protocol):
        seen = np.setdiff1d(np.arange(len(cases)), left_out)
        known = Published(**{name: getattr(runs, name)[seen] for name in Published.__slots__})
        memo: dict[Conditions, float] = {}
        for index in left_out:
            setting = settings[index]
            if setting not in memo:
                memo[setting] = float(distances(setting, known).min(initial=FARTHEST))
            far[index] = memo[setting]
    return np.asarray(np.minimum(far, FARTHEST))


def spreads(
    cases: Sequence[Case], held_out: Sequence[HeldOutPredictions], far: Sequence[Floats], weights: Floats
) -> dict[str, Spread]:
    """Return the interval of every framework: quantiles of the in-domain errors, and that growth with distance with
    which intervals made without the runs hold eight in ten where sources or GPU types are left out (each source
    counting alike)."""
    measured = np.array([case.run.seconds for case in cases], dtype=float)
    errors = [np.log(measured / held.seconds) for held in held_out]
    frameworks = np.array([case.job.framework for case in cases])
    best, chosen = np.inf, 0.0
    for growth in GROWTHS:
        gap = 0.0
        for error, distance, held in zip(errors[1:3], far[1:3], held_out[1:3], strict=True):
            ends = held_out_widths(cases, held_out[0], far[0], distance, weights, float(growth), held.protocol)
            inside = (error >= ends[:, 0]) & (error <= ends[:, 1])
            known = ~np.isnan(error)
            gap += abs(float((weights * inside)[known].sum() / weights[known].sum()) - (1.0 - 2.0 * TAIL))
        if gap < best:
            best, chosen = gap, float(growth)
    return _quantiles(errors[0], far[0], frameworks, weights, chosen)


def held_out_widths(
    cases: Sequence[Case],
    in_domain: HeldOutPredictions,
    seen: Floats,
    far: Floats,
    weights: Floats,
    growth: float,
    protocol: str,
) -> Floats:
    """Return the log errors at the ends of each case's interval, [N, 2], from the errors of runs that a protocol does
    not leave out with it. `seen` are in-domain distances, `far` those under the protocol."""
    error = np.log(np.array([case.run.seconds for case in cases], dtype=float) / in_domain.seconds)
    frameworks = np.array([case.job.framework for case in cases])
    widths = np.full((len(cases), 2), np.nan)
    for left_out in groups(cases, protocol):
        kept = np.setdiff1d(np.arange(len(cases)), left_out)
        if not len(kept):
            continue
        spread = _quantiles(error[kept], seen[kept], frameworks[kept], weights[kept], growth)
        wider = 1.0 + growth * np.minimum(far[left_out], FARTHEST)
        widths[left_out, 0] = -wider * np.array([spread[name].low for name in frameworks[left_out]])
        widths[left_out, 1] = wider * np.array([spread[name].high for name in frameworks[left_out]])
    return widths


def _quantiles(
    error: Floats, distance: Floats, frameworks: np.ndarray, weights: Floats, growth: float
) -> dict[str, Spread]:
    scaled = error / (1.0 + growth * distance)
    pooled = weighted_quantiles(scaled, weights)
    made = {}
    for framework in sorted(framework_names()):
        mine = frameworks == framework
        count = float(mine.sum())
        ends = weighted_quantiles(scaled[mine], weights[mine]) if mine.any() else pooled
        share = count / (count + PSEUDO_RUNS)
        low, high = (share * end + (1.0 - share) * all_ for end, all_ in zip(ends, pooled, strict=True))
        made[framework] = Spread(low=max(-low, LEAST), high=max(high, LEAST), growth=growth)
    return made


def weighted_quantiles(values: Floats, weights: Floats) -> tuple[float, float]:
    """Return the tenth and the ninetieth percentile of weighted values."""
    order = np.argsort(values, kind="stable")
    share = (np.cumsum(weights[order]) - 0.5 * weights[order]) / weights.sum()
    low, high = np.interp([TAIL, 1.0 - TAIL], share, values[order])
    return float(low), float(high)


def packed(runs: Published) -> bytes:
    """Return the table as the bytes of an .npz file, the same for the same table."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in Published.__slots__:
            values = getattr(runs, name)
            content = io.BytesIO()
            np.save(content, values.astype(np.float32) if values.dtype == np.float64 else values)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", STAMP), content.getvalue(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
