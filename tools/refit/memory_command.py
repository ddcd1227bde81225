"""`python -m tools.refit memory`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from shardwright.commands import argument, option


def memory(
    runs: Annotated[
        Path | None, argument(metavar="[RUNS.csv]", help="Table of runs that ran; default: those that ship.")
    ] = None,
    failed: Annotated[Path | None, argument(metavar="[FAILED.csv]", help="Table of runs that failed.")] = None,
    evaluate: Annotated[bool, option("--evaluate", help="Judge what ships instead of fitting anew.")] = False,
    out: Annotated[
        Path | None, option("--out", "-o", metavar="FILE", help="Write the table, frameworks.csv, here.")
    ] = None,
) -> None:
    """Fit what frameworks keep in memory, and how far predicted peaks are off, to published runs.

    \b
        python -m tools.refit memory                         the runs that ship
        python -m tools.refit memory RUNS.csv FAILED.csv     runs of your own

    RUNS.csv has runs that ran (columns as in docs/how-to-validate.md; those with measured memory are fitted to),
    FAILED.csv runs that did not. Without --out nothing is written; the errors of held-out predictions are printed."""
    import numpy as np
    from tools.refit.memory import (
        cases_of,
        fit_quality,
        fitted,
        held_out_errors,
        log_errors,
        source_medians,
        spreads,
        table,
    )

    from shardwright.cost.memory.facts import shipped_facts
    from shardwright.errors import bad
    from shardwright.files import write_atomically
    from shardwright.reports.validation import fits_words
    from shardwright.validation.runs import published_failed_runs, published_runs, read_runs

    ran = cases_of(published_runs() if runs is None else read_runs(runs))
    broken = None if failed is None else read_runs(failed)
    if runs is None:
        broken = published_failed_runs()
    measured = [case for case in ran if case.run.measured_mem_gb]
    if not measured:
        raise bad(str(runs), "has no run with measured memory that can be predicted", "see docs/how-to-validate.md")
    facts = shipped_facts()
    if evaluate:
        errors = {"as shipped": log_errors(measured, facts)}
    else:
        print(f"fitting to {len(measured):,} runs, about a minute", file=sys.stderr)
        centre = fitted(measured, facts)
        errors = {
            "near duplicates left out": held_out_errors(measured, centre),
            "source left out": held_out_errors(measured, centre, by_source=True),
        }
        facts = spreads(measured, errors["near duplicates left out"], centre)
    for name, misses in errors.items():
        medians = source_medians(measured, misses)
        macro = np.mean([error for _, error, _ in medians.values()])
        print(f"{name}: median error {np.median(np.abs(np.expm1(-misses))):.1%} of runs, {macro:.1%} of mean source")
        for source, (count, error, ratio) in medians.items():
            print(f"  {count:5d} runs  error {error:6.1%}  measured/predicted {ratio:.2f}  {source}")
    if broken is not None:
        quality = fit_quality(ran, cases_of(broken), facts)
        print(fits_words(quality))
    if out is not None:
        write_atomically(out, table(facts))
        print(out)
