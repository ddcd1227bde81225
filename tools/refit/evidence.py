"""The table of published runs that predictions cite, with errors of predictions that had not seen them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence

import numpy as np
from tools.refit.crossvalidate import HeldOutPredictions

from shardwright.cost.trust.evidence import DOUBLINGS, FLAGS, NAMES, Published
from shardwright.validation.case import Case, ideal_seconds
from shardwright.validation.forecast import conditions_of_case

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
        mfu=np.array([ideal_seconds(case) for case in cases]) / seconds,
        parameters=np.array([case.model.parameters for case in cases], dtype=float),
    )


def _words(case: Case) -> str:
    """Return the strategy of a run in short: "tp 4 pp 8 dp 16, micro-batch 1"."""
    if case.plan is not None:
        return f"{len(case.plan.replicas)} kinds of replicas, micro-batch {case.plan.micro_batch}"
    row = case.row
    degrees = " ".join(f"{name} {row[name]}" for name in ("tp", "cp", "pp", "ep", "dp") if int(row[name]) > 1)
    return f"{degrees or 'one GPU'}, micro-batch {row['micro_batch']}"


def packed(runs: Published) -> bytes:
    """Return the table as the bytes of an .npz file, the same for the same table."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in Published.__dataclass_fields__:
            values = getattr(runs, name)
            content = io.BytesIO()
            np.save(content, values.astype(np.float32) if values.dtype == np.float64 else values)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", STAMP), content.getvalue(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
