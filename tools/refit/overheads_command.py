"""`python -m tools.refit overheads`, and `intervals` for what of it holds around the constants that ship."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from shardwright.commands import argument, option


def overheads(
    runs: Annotated[
        Path | None, argument(metavar="[RUNS.csv]", help="Table of runs; default: the published runs that ship.")
    ] = None,
    out: Annotated[
        Path | None,
        option("--out", "-o", metavar="DIR", help="Where to write; default: the data of this package."),
    ] = None,
    page: Annotated[
        Path | None, option(metavar="FILE", help="Write the cross-validation to this file, as Markdown.")
    ] = None,
) -> None:
    """Fit the overheads of frameworks, the clocks of architectures, the table of evidence and the width of intervals
    to published training runs, and predict every run with a calibration that has not seen it.

    \b
        python -m tools.refit overheads                      what ships, from the runs that ship
        python -m tools.refit overheads RUNS.csv -o DIR      from runs of your own, columns as in
                                                             docs/how-to-validate.md

    Only runs of quality A and B with a measured time count."""
    from tools.refit.cross_page import cross_page
    from tools.refit.crossvalidate import learning_curve
    from tools.refit.remembering import Remembering
    from tools.refit.training import shipped_files, timed_cases, trained

    from shardwright.cost.learned import default_efficiency
    from shardwright.errors import bad
    from shardwright.files import write_atomically
    from shardwright.validation.runs import published_runs, read_runs

    if runs is not None and out is None:
        raise bad("--out", "is missing: runs of your own do not replace what ships", "name a folder, e.g. -o mine")
    cases = timed_cases(published_runs() if runs is None else read_runs(runs))
    if not cases:
        raise bad(str(runs), "has no run of quality A or B with a measured time", "see docs/how-to-validate.md")
    efficiency = Remembering(default_efficiency())
    print(f"fitting to {len(cases):,} runs, several minutes", file=sys.stderr)
    training = trained(cases, efficiency)
    _write(shipped_files(training), out)
    if page is not None:
        curve = learning_curve(cases, efficiency, training.calibration)
        write_atomically(page, (cross_page(cases, training, curve) + "\n").encode())
        print(page)


def intervals(
    out: Annotated[
        Path | None,
        option("--out", "-o", metavar="DIR", help="Where to write; default: the data of this package."),
    ] = None,
) -> None:
    """Fit the width of intervals and the table of evidence to the published runs that ship, predicted by constants that
    have not seen them; the constants that ship stay. Some minutes."""
    from tools.refit.remembering import Remembering
    from tools.refit.training import shipped_files, timed_cases, trained

    from shardwright.cost.frameworks.overheads import shipped
    from shardwright.cost.learned import default_efficiency
    from shardwright.validation.runs import published_runs

    cases = timed_cases(published_runs())
    print(f"predicting {len(cases):,} runs, some minutes", file=sys.stderr)
    _write(shipped_files(trained(cases, Remembering(default_efficiency()), shipped())), out)


def _write(files: Mapping[str, bytes], out: Path | None) -> None:
    """Write files of the package, to the package itself or all to one folder."""
    import shardwright
    from shardwright.files import write_atomically

    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = Path(shardwright.__file__).parent / name if out is None else out / Path(name).name
        write_atomically(path, content)
        print(path)
