"""`shardwright gpus` and `models`: the facts that ship with the package, with sources and dates."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from shardwright.cli import completion, options
from shardwright.cli.options import AcceptGuess
from shardwright.cli.output import screen_width, terminal_width, write, write_json
from shardwright.commands import argument

if TYPE_CHECKING:
    from shardwright.spec.model import Model

ONE = "One GPU, e.g. H100-SXM; all if not given."


def gpus(
    name: Annotated[str | None, argument(help=ONE, complete=completion.gpus)] = None,
    json: options.AsJson = False,
) -> None:
    """List GPUs: dense peaks, memory, links, source and date; or all that is known of one.

    Examples:

    \b
      shardwright gpus
      shardwright gpus H100-SXM
      shardwright gpus --json
    """
    from shardwright.reports.text.catalogue import gpu_text, gpus_text
    from shardwright.spec.catalog.gpus import find_gpu
    from shardwright.spec.catalog.gpus import gpus as known
    from shardwright.spec.catalog.prices import prices

    rows = [find_gpu(name)] if name is not None else list(known().values())
    if json:
        write_json([asdict(gpu) | {"peak_flops": dict(gpu.peak_flops)} for gpu in rows])
    elif name is None:
        write(gpus_text(rows, screen_width()))
    else:
        write(gpu_text(rows[0], [row for row in prices() if row.gpu == rows[0].name], terminal_width()))


def models(
    name: Annotated[
        str | None,
        argument(
            metavar="[MODEL]",
            help="Preset, config.json or YAML; all presets if not given.",
            complete=completion.models,
        ),
    ] = None,
    accept_guess: AcceptGuess = False,
    json: options.AsJson = False,
) -> None:
    """List model presets (parameters, shape, source), or show how one model is understood, config.json included.

    Examples:

    \b
      shardwright models
      shardwright models llama-3.1-8b
      shardwright models ./config.json
    """
    from shardwright.reports.text.catalogue import model_text, models_text
    from shardwright.spec.read.model import load_model
    from shardwright.spec.read.presets import find_preset, preset_names, preset_source

    rows = [load_model(preset, accept_guess=accept_guess) for preset in (preset_names() if name is None else (name,))]
    sources = {model.name: preset_source(preset) for model in rows if (preset := find_preset(model.name))}
    if json:
        write_json([_model_document(model, sources.get(model.name, "")) for model in rows])
    elif name is None:
        write(models_text(rows, sources, screen_width()))
    else:
        write(model_text(rows[0], sources.get(rows[0].name, ""), terminal_width()))


def _encoder_parameters(model: Model, part: str) -> int:
    return sum(tower.encoder_parameters for tower in model.towers if tower.part == part)


def _model_document(model: Model, source: str) -> dict[str, object]:
    return {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "hidden": model.hidden,
        "layers": len(model.layers),
        "vocab": model.vocab,
        **{f"{part}_parameters": _encoder_parameters(model, part) for part in ("vision", "audio", "encoder")},
        "projector_parameters": sum(tower.projector_parameters for tower in model.towers),
        "particular": model.particular,
        "guesses": list(model.guesses),
        "assumed": list(model.assumed),
        "source": source,
    }
