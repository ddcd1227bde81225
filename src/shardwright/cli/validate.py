"""`shardwright validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardwright.cli import options
from shardwright.cli.destination import deliver, require_writable
from shardwright.cli.output import progress, terminal_width, write, write_json
from shardwright.commands import argument, option
from shardwright.errors import bad

if TYPE_CHECKING:
    from shardwright.validation.validate import Validation


def validate(
    runs: Annotated[
        Path | None, argument(metavar="[RUNS.csv]", help="Runs, one a row; by default the published ones.")
    ] = None,
    failed: Annotated[
        Path | None,
        option(metavar="FILE", help="Runs that ran out of memory, in the same columns, to judge what fits."),
    ] = None,
    quality: Annotated[
        str, option(metavar="LETTERS", help="Only runs of these qualities, e.g. AB; by default all.")
    ] = "",
    kind: Annotated[
        tuple[str, ...], option(metavar="NAME", help="Only runs of this kind, e.g. pretrain; may be repeated.")
    ] = (),
    row: Annotated[tuple[str, ...], option(metavar="ID", help="Only the run of this row_id; may be repeated.")] = (),
    plot: Annotated[
        Path | None, option(metavar="FILE.svg", help="Write predicted against measured as a picture.")
    ] = None,
    markdown: Annotated[Path | None, option(metavar="FILE", help="Write the tables as a page.")] = None,
    json: options.AsJson = False,
) -> None:
    """Predict training runs and compare with what was measured: run by run, by group, against simple rivals.

    Without a file it takes the published runs that ship. docs/how-to-validate.md has the columns of a file.

    Examples:

    \b
      shardwright validate
      shardwright validate runs.csv --failed failed.csv
      shardwright validate runs.csv --quality AB --kind pretrain --json
      shardwright validate --row 7393f612b3 --json
      shardwright validate runs.csv --markdown accuracy.md --plot accuracy.svg
    """
    from shardwright.validation.validate import validate as compare

    require_writable(plot, [runs, failed], json=json, option="--plot")
    require_writable(markdown, [runs, failed, plot], json=json, option="--markdown")
    with progress("predicting the runs"):
        validation = compare(runs, failed=failed, quality=quality.upper(), kinds=kind, rows=row)
    _write_files(validation, plot, markdown)
    if json:
        from shardwright.reports.validation import validation_document

        write_json(validation_document(validation))
    else:
        from shardwright.reports.validation import validation_text

        write(validation_text(validation, terminal_width()))


def _write_files(validation: Validation, plot: Path | None, markdown: Path | None) -> None:
    from shardwright.reports.accuracy import accuracy_page, accuracy_plot

    if plot is not None:
        if not validation.summary.timed:
            raise bad("--plot", "no run has both a predicted and a measured time", "leave --plot out")
        deliver(accuracy_plot(validation), plot)
    if markdown is not None:
        deliver(accuracy_page(validation, markdown, plot), markdown)
