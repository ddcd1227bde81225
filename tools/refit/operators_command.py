"""`python -m tools.refit operators`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from shardwright.commands import argument, option


def operators(
    folder: Annotated[Path, argument(metavar="DIR", help="Folder with compute.csv.gz and comm.csv.gz.")],
    out: Annotated[
        Path | None,
        option("--out", "-o", metavar="OUT", help="Where to write; default: the data of this package."),
    ] = None,
    evaluate: Annotated[
        bool, option("--evaluate", help="Print errors on what is left out (some ten minutes), write no fit.")
    ] = False,
    page: Annotated[
        Path | None, option(metavar="FILE", help="With --evaluate: write the page there instead of printing it.")
    ] = None,
) -> None:
    """Fit the speed of operators and collectives to measurements of them.

    \b
        python -m tools.refit operators DIR                    what ships, from the files of DIR
        python -m tools.refit operators DIR -o OUT             the same, into a folder
        python -m tools.refit operators DIR --evaluate         errors on GPUs and rows left out; fits nothing

    docs/calibration.md has the format of the files and where public ones are. Needs xgboost-cpu."""
    from tools.refit.collective_rows import read_collectives
    from tools.refit.fitting import fitted_files, tables
    from tools.refit.operators_page import family_score, operators_page

    import shardwright.cost.learned
    from shardwright.errors import bad
    from shardwright.files import write_atomically

    fits, series = tables(folder), read_collectives(folder)
    if not fits and not series:
        raise bad(str(folder), "has no row to fit to", "docs/calibration.md says which rows count")
    if evaluate:
        scores = {}
        for family, rows in fits.items():
            print(f"{family}: {len(rows.target):,} rows", file=sys.stderr)
            scores[family] = family_score(family, rows)
        text = operators_page(scores, series) + "\n"
        if page is None:
            print(text, end="")
        else:
            write_atomically(page, text)
            print(page)
        return
    target = Path(shardwright.cost.learned.__file__).parent / "data" if out is None else out
    target.mkdir(parents=True, exist_ok=True)
    for name, content in fitted_files(fits, series):
        write_atomically(target / name, content)
        print(target / name)
