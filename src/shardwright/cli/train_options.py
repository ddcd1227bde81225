"""The options of `shardwright train` that belong together: recipe, output, fleet."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from shardwright.commands import option
from shardwright.records import record
from shardwright.runtime.state.recipe import METHODS, SCHEDULES, Recipe

USUAL = Recipe()


@record
class RecipeOptions:
    """How weights are updated (by default as before, when resumed)."""

    learning_rate: Annotated[
        float | None,
        option(metavar="RATE", help=f"Highest learning rate; by default {USUAL.learning_rate:g}."),
    ] = None
    schedule: Annotated[
        str | None,
        option(metavar="NAME", help=f"How the rate falls: {', '.join(SCHEDULES)}; by default {USUAL.schedule}."),
    ] = None
    warmup: Annotated[int | None, option(metavar="N", help="Steps of warm-up; by default 0.")] = None
    decay: Annotated[int | None, option(metavar="N", help="Step of the lowest rate; by default 0: never.")] = None
    decay_from: Annotated[
        int | None,
        option(metavar="N", help="Step at which the rate begins to fall; wsd: in the last tenth."),
    ] = None
    final_fraction: Annotated[
        float | None, option(metavar="X", help=f"Lowest rate over the highest; by default {USUAL.final_fraction:g}.")
    ] = None
    beta1: Annotated[float | None, option(metavar="X", help=f"Of Adam; by default {USUAL.betas[0]:g}.")] = None
    beta2: Annotated[float | None, option(metavar="X", help=f"Of Adam; by default {USUAL.betas[1]:g}.")] = None
    epsilon: Annotated[float | None, option(metavar="X", help=f"Of Adam; by default {USUAL.epsilon:g}.")] = None
    weight_decay: Annotated[
        float | None,
        option(metavar="X", help=f"Decoupled weight decay of matrices; by default {USUAL.weight_decay:g}."),
    ] = None
    clip: Annotated[
        float | None,
        option(metavar="X", help=f"Clip gradients to this global norm; by default {USUAL.clip:g}; 0: off."),
    ] = None
    optimizer: Annotated[str | None, option(metavar="NAME", help=f"{', '.join(METHODS)}; by default the plan's.")] = (
        None
    )
    seed: Annotated[int | None, option(metavar="N", help="Seed of initial weights and sample order; by default 0.")] = (
        None
    )


@record
class OutputOptions:
    """What is kept and measured."""

    out: Annotated[Path, option("--out", "-o", metavar="DIR", help="Checkpoints and metrics.")] = Path("run")
    checkpoint_every: Annotated[
        int, option(metavar="N", help="Steps between checkpoints; 0: at the end, with --elastic every snapshot.")
    ] = 0
    keep: Annotated[int, option(metavar="N", help="Keep this many checkpoints; 0: all.")] = 2
    save_weights: Annotated[
        Path | None, option(metavar="DIR", help="Write Hugging Face weights, or adapters for PEFT, here at the end.")
    ] = None
    eval_data: Annotated[
        str | None, option(metavar="FILE.bin", help="Also take the loss on these held-out tokens.")
    ] = None
    eval_every: Annotated[int, option(metavar="N", help="Steps between held-out losses; 0: at the end.")] = 0
    eval_batches: Annotated[int, option(metavar="N", help="Global batches of held-out tokens.")] = 8
    tensorboard: Annotated[
        bool, option("--tensorboard", help="Write metrics for TensorBoard too, into DIR/tensorboard.")
    ] = False
    wandb: Annotated[str, option(metavar="PROJECT", help="Send metrics to this project of Weights & Biases too.")] = ""
    logs: Annotated[
        Path | None, option(metavar="DIR", help="Also write the output of each rank to a file of its own.")
    ] = None
    profile: Annotated[
        Path | None, option(metavar="FILE", help="Write a layer profile of the first steps, to plan with.")
    ] = None
    profile_steps: Annotated[int, option(metavar="N", help="Steps that --profile measures.")] = 3
    trace: Annotated[
        Path | None,
        option(
            metavar="FILE.json", help="Write a trace of the second step beside the predicted one, for ui.perfetto.dev."
        ),
    ] = None


@record
class FleetOptions:
    """Machines that come and go (run the same command on each)."""

    elastic: Annotated[bool, option("--elastic", help="Go on when machines go or come.")] = False
    listen: Annotated[str, option(metavar="HOST:PORT", help="Where the other machines reach this one.")] = (
        "127.0.0.1:29400"
    )
    join: Annotated[str, option(metavar="HOST:PORT,…", help="Addresses of the machines; the first one begins.")] = ""
    secret_file: Annotated[
        Path | None,
        option(metavar="FILE", help="The run's secret, the same on all machines; else $SHARDWRIGHT_SECRET."),
    ] = None
    name: Annotated[str, option(metavar="NAME", help="Name of this machine; by default the host's.")] = ""
    zone: Annotated[
        str, option(metavar="NAME", help="Zone of this machine; machines of one zone may be lost together.")
    ] = ""
    machine_gpu: Annotated[str, option(metavar="NAME", help="This machine's GPU type, where the plan has several.")] = (
        ""
    )
    memory: Annotated[Path | None, option(metavar="DIR", help="Folder of snapshots; by default in /dev/shm.")] = None
    upload: Annotated[str, option(metavar="URL", help="Copy checkpoints here: s3://…, gs://…, file:///….")] = ""
    etcd: Annotated[str, option(metavar="HOST:PORT,…", help="Decide here who may go on; by default in --upload.")] = ""
    snapshot_every: Annotated[
        int, option(metavar="N", help="Lose at most this many steps where a shard has no holder.")
    ] = 10
    silence: Annotated[
        float, option(metavar="SECONDS", help="Count a machine, or a stopped worker, as lost after this silence.")
    ] = 5.0
    wait: Annotated[float, option(metavar="SECONDS", help="Longest wait for machines that a plan needs.")] = 600.0
    notices: Annotated[
        str,
        option(metavar="CLOUD,…", help="Watch for the preemption notice of aws, gcp or azure."),
    ] = ""


def names_of(group: Any) -> frozenset[str]:
    """Return the names of the options of a group."""
    return frozenset(item.name for item in fields(group))
