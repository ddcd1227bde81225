"""`shardwright support`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from click.exceptions import Exit

from shardwright.cli import options
from shardwright.cli.output import terminal_width, write, write_json
from shardwright.commands import option
from shardwright.errors import bad, suggestion

SPMD = "`shardwright spmd` shards any PyTorch module"


def support(
    model: options.Model = None,
    framework: Annotated[
        str | None,
        option(metavar="NAME", help="The trainers of this framework alone, with each fact's limit and source."),
    ] = None,
    accept_guess: options.AcceptGuess = False,
    json: options.AsJson = False,
) -> None:
    """Say who runs what: which trainer runs which precision, optimizer, layer, degree, sharding, schedule and model, as
    `plan` searches and `export` refuses. With a model: who runs it, and what the others lack; exit 3 if nobody does.

    Examples:

    \b
      shardwright support
      shardwright support --model gemma-3-27b
      shardwright support --framework deepspeed
      shardwright support --json
    """
    from shardwright.exporters.support.matrix import trainers
    from shardwright.spec.catalog.frameworks import framework_names
    from shardwright.spec.read.model import load_model
    from shardwright.trainers.runs import model_answers

    of_framework = {trainer.framework for trainer in trainers().values()}
    if framework is not None and framework not in (*of_framework, *framework_names()):
        raise bad(f"--framework {framework}", "is not known", suggestion(framework, framework_names()))
    if framework is not None and framework not in of_framework:
        write(f"{framework} is known for `evaluate` and `validate` alone: nothing is exported to it")
        return
    names = [name for name, trainer in trainers().items() if framework in (None, trainer.framework)]
    if model is None:
        _write_matrix(names, details=framework is not None, json=json)
        return
    chosen = load_model(model, accept_guess=accept_guess)
    answers = [answer for answer in model_answers(chosen) if answer.trainer.name in names]
    lacks = {
        answer.trainer.name: [f"{problem.path} {problem.message}" for problem in answer.refusals] for answer in answers
    }
    if json:
        rows = [{"trainer": name, "runs": not words, "lacks": words} for name, words in lacks.items()]
        write_json({"model": chosen.name, "family": chosen.family, "trainers": rows})
    else:
        from shardwright.reports.text.support import model_support_text

        write(model_support_text(f"{chosen.name} (family {chosen.family})", {**lacks, "spmd": []}, terminal_width()))
    if all(lacks.values()):
        raise Exit(3)


def _write_matrix(names: list[str], *, details: bool, json: bool) -> None:
    from shardwright.exporters.support.matrix import trainers
    from shardwright.reports.text.layout import listed
    from shardwright.reports.text.support import matrix_text
    from shardwright.spec.read.presets import preset_model, preset_names
    from shardwright.trainers.runs import chosen_facts, family_answers

    rows = chosen_facts(names)
    families = [answer for answer in family_answers(map(preset_model, preset_names())) if answer.target in names]
    if json:
        facts = [asdict(row) | {"version": row.version} for row in rows]
        write_json({"facts": facts, "families": [asdict(answer) for answer in families]})
        return
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        cells.setdefault((row.subject, row.value), {})[row.target] = row.runs
    for answer in families:
        cells.setdefault(("model family", answer.family), {})[answer.target] = answer.runs
    heads = [f"{trainer.name}: {trainer.title} {trainer.version}" for trainer in trainers().values()]
    write(listed("Trainers", [head for head in heads if head.split(":")[0] in names], terminal_width()) + "\n")
    write(matrix_text(cells, names))
    if details:
        points = [f"{row.target}, {row.subject} {row.value}: {row.message or row.runs} ({row.source})" for row in rows]
        write("\n" + listed("Facts", [point for point in points if "()" not in point], terminal_width()))
