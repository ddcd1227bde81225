"""`shardwright train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.cli import options
from shardwright.cli.destination import require_writable
from shardwright.cli.train_input import (
    checked_layout,
    recipe_of,
    require_below_1,
    require_changes,
    require_measurable,
    require_no_less_than_0,
    require_positive,
    require_with,
    settings_before,
    sources_of,
    with_optimizer,
    with_precision,
)
from shardwright.cli.train_run import run_plan, show_layout
from shardwright.commands import option
from shardwright.runtime.job.settings import CHANGES
from shardwright.runtime.state.recipe import METHOD_OF, METHODS, SCHEDULES, Recipe

USUAL, TRAVELS = Recipe(), "As before when resumed."


def train(
    plan: options.PlanFile,
    data: Annotated[
        tuple[str, ...],
        option(
            metavar="FILE.bin[=W]",
            help="A token file, as `shardwright tokens` makes it, or its URL. Several: of weight W each, or by size.",
        ),
    ] = (),
    steps: Annotated[int, option(metavar="N", help="Train up to this step.")] = 100,
    out: Annotated[Path, option("--out", "-o", metavar="DIR", help="Checkpoints and metrics.")] = Path("run"),
    resume: Annotated[
        Path | None, option(metavar="DIR", help="Go on from the newest checkpoint in this folder.")
    ] = None,
    checkpoint_every: Annotated[int, option(metavar="N", help="Steps between checkpoints; 0: at the end.")] = 0,
    keep: Annotated[int, option(metavar="N", help="Keep this many checkpoints; 0: all.")] = 2,
    weights: Annotated[
        Path | None, option(metavar="DIR", help="Start from the Hugging Face weights in this folder.")
    ] = None,
    save_weights: Annotated[
        Path | None, option(metavar="DIR", help="Write Hugging Face weights here at the end.")
    ] = None,
    config: Annotated[
        Path | None, option(metavar="config.json", help="Where epsilon and rotary scaling stand.")
    ] = None,
    accept_change: Annotated[
        tuple[str, ...],
        option(metavar="NAME", help=f"Resume though this differs: {', '.join(CHANGES)}. May be repeated."),
    ] = (),
    learning_rate: Annotated[
        float | None,
        option(metavar="RATE", help=f"The highest learning rate; {USUAL.learning_rate:g}. {TRAVELS}"),
    ] = None,
    schedule: Annotated[
        str | None,
        option(metavar="NAME", help=f"How it falls: {', '.join(SCHEDULES)}; {USUAL.schedule}. {TRAVELS}"),
    ] = None,
    warmup: Annotated[int | None, option(metavar="N", help=f"Steps until it is reached; 0. {TRAVELS}")] = None,
    decay: Annotated[int | None, option(metavar="N", help=f"Step at which it is lowest; 0: never. {TRAVELS}")] = None,
    decay_from: Annotated[
        int | None,
        option(metavar="N", help=f"Step at which it begins to fall; wsd: in the last tenth. {TRAVELS}"),
    ] = None,
    final_fraction: Annotated[
        float | None, option(metavar="X", help=f"What is left of it then; {USUAL.final_fraction:g}. {TRAVELS}")
    ] = None,
    beta1: Annotated[float | None, option(metavar="X", help=f"Adam's; {USUAL.betas[0]:g}. {TRAVELS}")] = None,
    beta2: Annotated[float | None, option(metavar="X", help=f"Adam's; {USUAL.betas[1]:g}. {TRAVELS}")] = None,
    epsilon: Annotated[float | None, option(metavar="X", help=f"Adam's; {USUAL.epsilon:g}. {TRAVELS}")] = None,
    weight_decay: Annotated[
        float | None,
        option(metavar="X", help=f"Decoupled weight decay of matrices; {USUAL.weight_decay:g}. {TRAVELS}"),
    ] = None,
    clip: Annotated[
        float | None,
        option(metavar="X", help=f"Limit of the gradients' global norm; {USUAL.clip:g}; 0: none. {TRAVELS}"),
    ] = None,
    optimizer: Annotated[str | None, option(metavar="NAME", help=f"{', '.join(METHODS)}, if not the plan's.")] = None,
    seed: Annotated[
        int | None, option(metavar="N", help=f"Of initial weights and the order of samples; 0. {TRAVELS}")
    ] = None,
    device: Annotated[
        str | None, option(metavar="NAME", help="cuda or cpu; GPUs if there are any, if not given.")
    ] = None,
    precision: Annotated[
        str | None,
        option(metavar="NAME", help="bf16, fp16, fp8 (with fp32 master weights) or fp32, if not the plan's."),
    ] = None,
    compile: Annotated[
        bool | None, option("--compile/--no-compile", help="Compile layers; on GPUs, if not given.")
    ] = None,
    mask_documents: Annotated[
        bool, option("--mask-documents", help="Attention stays within a document: up to its last token.")
    ] = False,
    eval_data: Annotated[
        str | None, option(metavar="FILE.bin", help="Held-out tokens, on which the loss is taken too.")
    ] = None,
    eval_every: Annotated[int, option(metavar="N", help="Steps between held-out losses; 0: at the end.")] = 0,
    eval_batches: Annotated[int, option(metavar="N", help="Global batches of held-out tokens.")] = 8,
    tensorboard: Annotated[
        bool, option("--tensorboard", help="Write metrics for TensorBoard too, into DIR/tensorboard.")
    ] = False,
    wandb: Annotated[str, option(metavar="PROJECT", help="Send metrics to this project of Weights & Biases too.")] = "",
    logs: Annotated[
        Path | None, option(metavar="DIR", help="Write what each rank prints into a file of its own too.")
    ] = None,
    profile: Annotated[
        Path | None, option(metavar="FILE", help="Write a layer profile of the first steps, to plan with.")
    ] = None,
    profile_steps: Annotated[int, option(metavar="N", help="Steps to measure for it.")] = 3,
    trace: Annotated[
        Path | None,
        option(metavar="FILE.json", help="Write the second step, and the predicted one, for ui.perfetto.dev."),
    ] = None,
    patience: Annotated[
        float, option(metavar="SECONDS", help="A rank silent or stuck for longer counts as lost.")
    ] = 120.0,
    elastic: Annotated[
        bool,
        option("--elastic", help="Outlive lost machines: run this command on each, with --listen and --join."),
    ] = False,
    listen: Annotated[
        str, option(metavar="HOST:PORT", help="Where the other machines reach this one (--elastic).")
    ] = "127.0.0.1:29400",
    join: Annotated[str, option(metavar="HOST:PORT,…", help="Where others may be; the first begins (--elastic).")] = "",
    name: Annotated[str, option(metavar="NAME", help="This machine's name (--elastic); the host's.")] = "",
    zone: Annotated[str, option(metavar="NAME", help="What may be lost as one (--elastic).")] = "",
    machine_gpu: Annotated[
        str, option(metavar="NAME", help="This machine's GPU type, where the plan has several (--elastic).")
    ] = "",
    memory: Annotated[
        Path | None, option(metavar="DIR", help="Snapshots in memory (--elastic); a folder in /dev/shm.")
    ] = None,
    upload: Annotated[
        str, option(metavar="URL", help="Steps are uploaded here too (--elastic): s3://…, gs://…, file:///….")
    ] = "",
    etcd: Annotated[
        str, option(metavar="HOST:PORT,…", help="Who may go on is settled here (--elastic), else in --upload.")
    ] = "",
    snapshot_every: Annotated[
        int, option(metavar="N", help="Steps lost at most, if a shard has no holder (--elastic).")
    ] = 10,
    silence: Annotated[
        float,
        option(
            metavar="SECONDS", help="A machine silent for longer is lost, and a worker that is stopped (--elastic)."
        ),
    ] = 5.0,
    wait: Annotated[
        float, option(metavar="SECONDS", help="Wait so long for machines that a plan needs (--elastic).")
    ] = 600.0,
    notices: Annotated[
        str,
        option(
            metavar="CLOUD,…", help="Watch for the notice of aws, gcp or azure that it takes this machine (--elastic)."
        ),
    ] = "",
    dry_run: Annotated[
        bool, option("--dry-run", help="Show every rank's layers, groups, neighbours and memory; run nothing.")
    ] = False,
    json: options.AsJson = False,
) -> int:
    """Run a plan on torch.distributed: any plan, uniform or mixed, on CPUs (gloo) or GPUs (NCCL).

    On one machine the command starts all processes itself. On several, start it under torchrun on each:

    \b
      shardwright train plan.json --data corpus.bin --steps 200 --out run
      shardwright train plan.json --data corpus.bin --steps 400 --out run --resume run
      shardwright train plan.json --data corpus.bin --dry-run
      torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint host:29500 \\
          -m shardwright train plan.json --data corpus.bin --device cuda

    Ctrl-C stops after the step, with a checkpoint; a checkpoint can be resumed under another plan and on other
    machines.
    """
    from shardwright.cli.elastic import present_device, run_elastic
    from shardwright.plans.document import load_plan
    from shardwright.runtime.job.launch import choose_device, inside_torchrun, launcher
    from shardwright.runtime.job.parent import end_with_parent
    from shardwright.runtime.job.settings import Settings
    from shardwright.runtime.storage.data import location_of

    if inside_torchrun():
        end_with_parent(launcher())
    found = with_precision(with_optimizer(load_plan(plan), optimizer), precision)
    layout = checked_layout(found)
    if dry_run:
        show_layout(layout, json=json)
        return 0
    sources = sources_of(data)
    require_positive(
        steps=steps,
        eval_batches=eval_batches,
        profile_steps=profile_steps,
        learning_rate=learning_rate,
        epsilon=epsilon,
        patience=patience,
    )
    require_no_less_than_0(
        warmup=warmup, decay=decay, decay_from=decay_from, weight_decay=weight_decay, clip=clip,
        checkpoint_every=checkpoint_every, eval_every=eval_every, keep=keep, beta1=beta1, beta2=beta2,
        final_fraction=final_fraction,
    )  # fmt: skip
    require_below_1(beta1=beta1, beta2=beta2)
    require_with("--eval-data", eval_data is not None, eval_every=eval_every)
    require_with(
        "--elastic", elastic, join=join, name=name, zone=zone, machine_gpu=machine_gpu, memory=memory, upload=upload,
        etcd=etcd, notices=notices,
    )  # fmt: skip
    require_changes(accept_change)
    if profile is not None:
        require_measurable(found)
    inputs = [plan, *(source.path for source in sources if isinstance(source.path, Path))]
    require_writable(profile, inputs, option="--profile")
    require_writable(trace, [*inputs, profile], option="--trace")
    before = settings_before(resume)
    recipe = recipe_of(
        before,
        method=METHOD_OF[found.job.optimizer],
        schedule=schedule,
        learning_rate=learning_rate,
        warmup_steps=warmup,
        decay_from=decay_from,
        decay_steps=decay,
        final_fraction=final_fraction,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        weight_decay=weight_decay,
        clip=clip,
    )
    settings = Settings(
        data=sources,
        out=out,
        steps=steps,
        recipe=recipe,
        mask_documents=mask_documents,
        seed=before.get("seed", 0) if seed is None else seed,
        checkpoint_every=checkpoint_every,
        keep=keep,
        resume=resume,
        accept_change=accept_change,
        weights=weights,
        save_weights=save_weights,
        config=config,
        device=choose_device(device) if not elastic else present_device(device),
        precision=found.job.precision,
        patience_seconds=patience,
        profile=profile,
        profile_steps=profile_steps,
        trace=trace,
        held_out=None if eval_data is None else location_of(eval_data),
        evaluate_every=eval_every,
        evaluate_batches=eval_batches,
        tensorboard=tensorboard,
        wandb=wandb,
        compile=compile,
    )
    if elastic:
        require_positive(snapshot_every=snapshot_every, silence=silence, wait=wait)
        return run_elastic(
            found,
            settings,
            listen=listen,
            join=join,
            name=name,
            zone=zone,
            gpu=machine_gpu,
            memory=memory,
            upload=upload,
            etcd=etcd,
            snapshot_every=snapshot_every,
            silence_seconds=silence,
            wait_seconds=wait,
            notices=notices,
            logs=logs,
        )
    return run_plan(found, layout, settings, logs, json=json)
