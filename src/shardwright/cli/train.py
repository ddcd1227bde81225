"""`shardwright train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.cli import options
from shardwright.cli.train_input import checked_layout, checked_settings, require_input, with_optimizer, with_precision
from shardwright.cli.train_options import FleetOptions, OutputOptions, RecipeOptions
from shardwright.cli.train_run import run_plan, show_layout
from shardwright.commands import given, option
from shardwright.runtime.job.settings import CHANGES


def train(
    plan: options.PlanFile,
    recipe: RecipeOptions,
    output: OutputOptions,
    fleet: FleetOptions,
    data: Annotated[
        tuple[str, ...],
        option(
            metavar="FILE.bin[=W]",
            help="Token file by `shardwright tokens`, or its URL. Several are mixed by their weights W, or by size.",
        ),
    ] = (),
    steps: Annotated[int, option(metavar="N", help="Train up to this step.")] = 100,
    resume: Annotated[
        Path | None, option(metavar="DIR", help="Go on from the newest checkpoint in this folder.")
    ] = None,
    accept_change: Annotated[
        tuple[str, ...],
        option(metavar="NAME", help=f"Resume although this differs: {', '.join(CHANGES)}. May be repeated."),
    ] = (),
    weights: Annotated[
        Path | None, option(metavar="DIR", help="Start from the Hugging Face weights in this folder.")
    ] = None,
    adapter_weights: Annotated[
        Path | None, option(metavar="DIR", help="Start from the adapters in this folder, as PEFT keeps them.")
    ] = None,
    config: Annotated[
        Path | None,
        option(metavar="config.json", help="File to read the norm epsilon and the scaling of rotary positions from."),
    ] = None,
    mask_documents: Annotated[bool, option("--mask-documents", help="Keep attention within each document.")] = False,
    device: Annotated[str | None, option(metavar="NAME", help="cuda or cpu; by default GPUs if there are any.")] = None,
    precision: Annotated[
        str | None,
        option(metavar="NAME", help="bf16, fp16, fp8 (with fp32 master weights) or fp32; by default the plan's."),
    ] = None,
    compile: Annotated[
        bool | None, option("--compile/--no-compile", help="Compile layers; by default on GPUs.")
    ] = None,
    patience: Annotated[
        float, option(metavar="SECONDS", help="Count a rank as lost once it is silent or stuck for this long.")
    ] = 120.0,
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

    A plan of adapters (`plan --adapter lora:16`) trains these beside --weights; --save-weights writes them for PEFT.

    Ctrl-C stops after the step, with a checkpoint; a checkpoint can be resumed under another plan and on other
    machines.
    """
    from shardwright.cli.elastic import present_device, run_elastic
    from shardwright.plans.document import load_plan
    from shardwright.recovery.quorum import require_machines
    from shardwright.runtime.job.ending import end_with_parent
    from shardwright.runtime.job.launch import choose_device, inside_torchrun, launcher

    if inside_torchrun():
        end_with_parent(launcher())
    run = with_precision(with_optimizer(load_plan(plan), recipe.optimizer), precision)
    layout = checked_layout(run)
    if fleet.elastic:
        require_machines(run)
    if dry_run and not data:
        show_layout(layout, json=json)
        return 0
    settings = checked_settings(
        run,
        plan,
        recipe,
        output,
        fleet,
        given(),
        data=data,
        steps=steps,
        resume=resume,
        accept_change=accept_change,
        weights=weights,
        adapters=adapter_weights,
        config=config,
        mask_documents=mask_documents,
        device=present_device(device) if dry_run or fleet.elastic else choose_device(device),
        compile=compile,
        patience_seconds=patience,
    )
    if dry_run:
        require_input(run, settings)
        show_layout(layout, json=json)
        return 0
    if fleet.elastic:
        return run_elastic(run, settings, fleet, output.logs)
    return run_plan(run, layout, settings, output.logs, json=json)
