"""`shardwright fit`."""

from __future__ import annotations

from typing import Annotated

from click.exceptions import Exit

from shardwright.cli import completion, options
from shardwright.cli.options import AcceptGuess, Optimizer
from shardwright.cli.output import terminal_width, write, write_json
from shardwright.commands import argument, option
from shardwright.errors import bad

USUAL_SEQ_LEN = 2048
MODEL, GPU = "Preset, config.json or its folder, or YAML.", "GPU type, e.g. RTX3090 (`shardwright gpus`)."


def fit(
    model: Annotated[str, argument(metavar="MODEL", help=MODEL, complete=completion.models)],
    gpu: Annotated[str, option(metavar="GPU", help=GPU, complete=completion.gpus)],
    gpus: Annotated[int, option(metavar="N", help="GPUs of one machine.")] = 1,
    nodes: Annotated[int, option(metavar="N", help="Machines.")] = 1,
    seq_len: Annotated[
        int | None, option(metavar="N", help="Tokens of one sample; usually 2048, or the model's most.")
    ] = None,
    micro_batch: Annotated[int, option(metavar="N", help="Samples that a GPU takes at a time.")] = 1,
    precision: Annotated[str, option(metavar="NAME", help="bf16, fp16 or fp32.")] = "bf16",
    optimizer: Optimizer = "adam",
    master_weights: options.MasterWeights = None,
    framework: Annotated[str, option(metavar="NAME", help="Software that trains, as for `plan`.")] = "fsdp",
    accept_guess: AcceptGuess = False,
    json: options.AsJson = False,
) -> None:
    """Say in a second whether training a model fits a GPU: full training, sharded (ZeRO), with the optimizer in host
    memory, LoRA and QLoRA; what would make it fit, and the command to type next.

    Examples:

    \b
      shardwright fit llama-3.1-8b --gpu RTX3090
      shardwright fit ./config.json --gpu RTX4090 --gpus 4 --seq-len 4096
      shardwright fit llama-3.1-70b --gpu H100-SXM --gpus 8 --nodes 4 --json
    """
    from shardwright.cli.inputs import job_of
    from shardwright.reports.text.sizing import sizing_document, sizing_text
    from shardwright.search.sizing import fit as size
    from shardwright.spec.read.cluster import load_cluster
    from shardwright.spec.read.model import load_model

    for words, count in (("--gpus", gpus), ("--nodes", nodes), ("--micro-batch", micro_batch)):
        if count < 1:
            raise bad(f"{words} {count}", "is not above 0", "give 1 or more")
    sized = load_model(model, accept_guess=accept_guess)
    cluster = load_cluster(f"{nodes}x{gpus}x{gpu}")
    job = job_of(
        global_batch=cluster.gpus * micro_batch,
        seq_len=seq_len or min(USUAL_SEQ_LEN, sized.max_position or USUAL_SEQ_LEN),
        precision=precision,
        optimizer=optimizer,
        master_weights=master_weights,
        framework=framework,
    )
    sizing = size(sized, cluster, job)
    write_json(sizing_document(sizing, model)) if json else write(sizing_text(sizing, model, terminal_width()))
    if sizing.first is None:
        raise Exit(3)
