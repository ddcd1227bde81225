"""`shardwright support`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from click.exceptions import Exit

from shardwright.cli import options
from shardwright.cli.output import terminal_width, write, write_json
from shardwright.commands import option

if TYPE_CHECKING:
    from shardwright.trainers.runs import Support


def support(
    model: options.Model = None,
    framework: Annotated[
        str | None,
        option(metavar="NAME", help="The trainers of this framework alone, with each fact's limit and source."),
    ] = None,
    accept_guess: options.AcceptGuess = False,
    json: options.AsJson = False,
) -> None:
    """Say which trainer runs which precision, optimizer, layer, degree, sharding, schedule and model, as `plan`
    searches and `export` refuses. With a model, say who runs it and what the others lack; exit 3 if nobody does.

    Examples:

    \b
      shardwright support
      shardwright support --model gemma-3-27b
      shardwright support --framework deepspeed
      shardwright support --json
    """
    from shardwright.spec.read.model import load_model
    from shardwright.trainers.runs import support as ask

    answer = ask(None if model is None else load_model(model, accept_guess=accept_guess), framework=framework)
    if json:
        write_json(answer.document)
    elif answer.model is not None:
        from shardwright.exporters.support.refusals import layer_refusals
        from shardwright.reports.text.catalogue import model_support_text

        words = f"{answer.model.name} (family {answer.model.family})"
        lacks = {name: list(lacking) for name, lacking in answer.lacks.items()}
        lacks["spmd"] = [problem.wrong for problem in layer_refusals(answer.model, "spmd")]
        write(model_support_text(words, lacks, terminal_width()))
    elif answer.trainers:
        _write_matrix(answer, details=framework is not None)
    else:
        write(f"{framework} is known for `evaluate` and `validate` alone: nothing is exported to it")
    if answer.lacks and all(answer.lacks.values()):
        raise Exit(3)


def _write_matrix(answer: Support, *, details: bool) -> None:
    from shardwright.exporters.support.matrix import trainers
    from shardwright.reports.text.catalogue import matrix_text
    from shardwright.reports.text.layout import listed

    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in answer.facts:
        cells.setdefault((row.subject, row.value), {})[row.target] = row.runs
    for family in answer.families:
        cells.setdefault(("model family", family.family), {})[family.target] = family.runs
    heads = [f"{trainer.name}: {trainer.title} {trainer.version}" for trainer in trainers().values()]
    write(
        listed("Trainers", [head for head in heads if head.split(":")[0] in answer.trainers], terminal_width()) + "\n"
    )
    write(matrix_text(cells, list(answer.trainers)))
    if details:
        rows = answer.facts
        points = [f"{row.target}, {row.subject} {row.value}: {row.message or row.runs} ({row.source})" for row in rows]
        write("\n" + listed("Facts", [point for point in points if "()" not in point], terminal_width()))
