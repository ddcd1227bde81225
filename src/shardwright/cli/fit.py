"""`shardwright fit`."""

from __future__ import annotations

from typing import Annotated

from click.exceptions import Exit

from shardwright.cli import completion, options
from shardwright.cli.destination import deliver, require_writable, tell
from shardwright.cli.output import terminal_width, write, write_json
from shardwright.commands import argument, given, option
from shardwright.errors import bad

USUAL_SEQ_LEN = 2048
MODEL, GPU = "Preset, config.json or its folder, or YAML.", "GPU type, e.g. RTX3090 (`shardwright gpus`)."


def fit(
    model: Annotated[str, argument(metavar="MODEL", help=MODEL, complete=completion.models)],
    training: options.TrainingOptions,
    sequence: options.SequenceOptions,
    gpu: Annotated[str | None, option(metavar="GPU", help=GPU, complete=completion.gpus)] = None,
    gpus: Annotated[int, option(metavar="N", help="GPUs of one machine.")] = 1,
    nodes: Annotated[int, option(metavar="N", help="Machines.")] = 1,
    cluster: Annotated[
        str | None,
        option(metavar="CLUSTER", help="GPUs of several types, instead of the three above: 1x1xRTX4090+1x2xRTX3090."),
    ] = None,
    seq_len: Annotated[
        int | None, option(metavar="N", help="Tokens of one sample; by default 2048, or the model's limit.")
    ] = None,
    micro_batch: Annotated[
        int | None, option(metavar="N", help="Samples that a GPU takes at a time; by default 1, of kto 2.")
    ] = None,
    precision: Annotated[str, option(metavar="NAME", help="bf16, fp16 or fp32.")] = "bf16",
    framework: Annotated[str, option(metavar="NAME", help="Trainer, as for `plan`.")] = "fsdp",
    settings: Annotated[
        tuple[str, ...],
        option(
            "--set",
            metavar="NAME=VALUE",
            help="An option of the trainer: loss=chunked, activation_offload=inputs; may be repeated.",
        ),
    ] = (),
    accept_guess: options.AcceptGuess = False,
    recipe: Annotated[
        str | None,
        option(
            metavar="TRAINER",
            help="Write the recipe of the first way that fits, for axolotl, trl or llamafactory; with --out to a file.",
        ),
    ] = None,
    out: options.Out = None,
    json: options.AsJson = False,
) -> None:
    """Say in a second whether training a model fits some GPUs: full training, sharded (ZeRO), with the optimizer in
    host memory, LoRA, 8-bit LoRA and QLoRA, sharded too; the longest sequence, the largest micro-batch and the fewest
    GPUs of each, what would make the rest fit, and the command to type next. Ways with adapters have those of
    --adapter, or lora:16.

    Examples:

    \b
      shardwright fit llama-3.1-8b --gpu RTX3090
      shardwright fit ./config.json --gpu RTX4090 --gpus 4 --seq-len 4096
      shardwright fit llama-3.1-70b --gpu RTX3090 --gpus 2 --seq-len 512 --adapter lora:8
      shardwright fit llama-3.1-8b --gpu RTX4090 --recipe axolotl --out recipe.yaml
      shardwright fit llama-3.1-8b --cluster 1x1xRTX4090+1x2xRTX3090
      shardwright fit qwen3-32b --gpu A100-SXM-80 --gpus 8 --seq-len 32768 --set loss=chunked
      shardwright fit llama-3.1-70b --gpu H100-SXM --gpus 8 --nodes 4 --json
    """
    from shardwright.cli.inputs import job_of
    from shardwright.exporters.recipes import as_run
    from shardwright.exporters.recipes import recipe as write_recipe
    from shardwright.reports.text.sizing import sizing_document, sizing_text
    from shardwright.search.space.axes import only_job, parse_pins
    from shardwright.spec.preference import parse_preference
    from shardwright.spec.read.cluster import load_cluster
    from shardwright.spec.read.model import load_model
    from shardwright.trainers.fit import fit as size

    if out is not None and recipe is None:
        raise bad("--out", "there is no recipe to write to it", "give --recipe axolotl, trl or llamafactory")
    require_writable(out, [model], json=json)
    preferred = None if training.preference is None else parse_preference(training.preference)
    samples = micro_batch if micro_batch is not None else 1 if preferred is None else preferred.least_samples
    for words, count in (("--gpus", gpus), ("--nodes", nodes), ("--micro-batch", samples)):
        if count < 1:
            raise bad(f"{words} {count}", "is not above 0", "give 1 or more")
    sized = load_model(model, accept_guess=accept_guess)
    if (gpu is None) == (cluster is None):
        raise bad("--gpu", "exactly one of --gpu and --cluster must be given", "e.g. --gpu RTX3090")
    for name in sorted({"gpus", "nodes"} & given()) if cluster is not None else ():
        raise bad(f"--{name}", "the cluster says how many there are", f"leave --{name} out, or name a --gpu instead")
    machines = load_cluster(cluster or f"{nodes}x{gpus}x{gpu}")
    job = job_of(
        training,
        sequence,
        global_batch=machines.gpus * samples,
        seq_len=min(USUAL_SEQ_LEN, sized.max_position or USUAL_SEQ_LEN) if seq_len is None else seq_len,
        precision=precision,
        framework=framework,
    )
    space = parse_pins(settings)
    if space.pins:
        hint = "`shardwright plan` pins it; here: loss, activation_offload, weight_offload, gradient_sync"
        raise bad(f"--set {next(iter(space.pins))}", "is no option of a trainer: `fit` tries layouts of its own", hint)
    sizing = size(sized, machines, as_run(recipe, only_job(job, space.options)))
    text = None if recipe is None else write_recipe(sizing, model, recipe)
    if text is not None and out is not None:
        deliver(text, out)
    if json:
        write_json({**sizing_document(sizing, model), "recipe": text})
    elif text is not None and out is None:
        write(text)
    else:
        tell(sizing_text(sizing, model, terminal_width()), beside=out)
    if sizing.first is None:
        raise Exit(3)
