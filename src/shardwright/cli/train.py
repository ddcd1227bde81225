"""`shardwright train` and `shardwright tokens`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from shardwright.cli.destination import require_writable
from shardwright.cli.output import write, write_json
from shardwright.errors import SpecError, bad
from shardwright.runtime.job.settings import CHANGES
from shardwright.runtime.state.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardwright.plans.plan import Plan
    from shardwright.runtime.job.metrics import Row
    from shardwright.runtime.job.settings import Settings
    from shardwright.runtime.layout.groups import Layout
    from shardwright.spec.job import Precision

HELP = """Run a plan on torch.distributed: any plan, uniform or mixed, on CPUs (gloo) or GPUs (NCCL).

On one machine the command starts all processes itself. On several, start it under torchrun on each:

\b
  shardwright train plan.json --data corpus.bin --steps 200 --out run
  shardwright train plan.json --data corpus.bin --steps 400 --out run --resume run
  shardwright train plan.json --data corpus.bin --dry-run
  torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint host:29500 \\
      -m shardwright train plan.json --data corpus.bin --device cuda

Ctrl-C stops after the step, with a checkpoint; a checkpoint can be resumed under another plan and on other machines.
"""
TOKENS_HELP = """Make a token file for `train` from text files.

Examples:

\b
  shardwright tokens book.txt notes.md -o corpus.bin
  shardwright tokens *.txt -o corpus.bin --tokenizer path/to/tokenizer.json
"""
LINES = 20
USUAL, TRAVELS = Recipe(), "As before when resumed."


def train(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="A plan file, as `plan --out` writes it.")],
    data: Annotated[
        Path | None, typer.Option(metavar="FILE.bin", help="A token file, as `shardwright tokens` makes it.")
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Train up to this step.")] = 100,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Checkpoints and metrics.")] = Path("run"),
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on from the newest checkpoint in this folder.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(metavar="N", help="Steps between checkpoints; 0: at the end.")] = 0,
    keep: Annotated[int, typer.Option(metavar="N", help="Keep this many checkpoints; 0: all.")] = 2,
    weights: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Start from the Hugging Face weights in this folder.")
    ] = None,
    save_weights: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write Hugging Face weights here at the end.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="config.json", help="Where epsilon and rotary scaling stand.")
    ] = None,
    accept_change: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Resume though this differs: {', '.join(CHANGES)}. May be repeated."),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(metavar="RATE", help=f"The highest learning rate; {USUAL.learning_rate:g}. {TRAVELS}"),
    ] = None,
    warmup: Annotated[int | None, typer.Option(metavar="N", help=f"Steps until it is reached; 0. {TRAVELS}")] = None,
    decay: Annotated[
        int | None, typer.Option(metavar="N", help=f"Step at which it is lowest; 0: never. {TRAVELS}")
    ] = None,
    final_fraction: Annotated[
        float | None, typer.Option(metavar="X", help=f"What is left of it then; {USUAL.final_fraction:g}. {TRAVELS}")
    ] = None,
    beta1: Annotated[float | None, typer.Option(metavar="X", help=f"Adam's; {USUAL.betas[0]:g}. {TRAVELS}")] = None,
    beta2: Annotated[float | None, typer.Option(metavar="X", help=f"Adam's; {USUAL.betas[1]:g}. {TRAVELS}")] = None,
    epsilon: Annotated[float | None, typer.Option(metavar="X", help=f"Adam's; {USUAL.epsilon:g}. {TRAVELS}")] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(metavar="X", help=f"Decoupled weight decay of matrices; {USUAL.weight_decay:g}. {TRAVELS}"),
    ] = None,
    clip: Annotated[
        float | None,
        typer.Option(metavar="X", help=f"Limit of the gradients' global norm; {USUAL.clip:g}; 0: none. {TRAVELS}"),
    ] = None,
    optimizer: Annotated[str | None, typer.Option(metavar="NAME", help="adamw or sgd, if not the plan's.")] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help=f"Of initial weights and the order of samples; 0. {TRAVELS}")
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="cuda or cpu; GPUs if there are any, if not given.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="bf16, fp16 (with fp32 master weights) or fp32, if not the plan's."),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a layer profile of the first steps, to plan with.")
    ] = None,
    profile_steps: Annotated[int, typer.Option(metavar="N", help="Steps to measure for it.")] = 3,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write the second step, and the predicted one, for ui.perfetto.dev."),
    ] = None,
    patience: Annotated[
        float, typer.Option(metavar="SECONDS", help="A rank silent or stuck for longer counts as lost.")
    ] = 120.0,
    elastic: Annotated[
        bool,
        typer.Option("--elastic", help="Outlive lost machines: run this command on each, with --listen and --join."),
    ] = False,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the other machines reach this one (--elastic).")
    ] = "127.0.0.1:29400",
    join: Annotated[
        str, typer.Option(metavar="HOST:PORT,…", help="Where others may be; the first begins (--elastic).")
    ] = "",
    name: Annotated[str, typer.Option(metavar="NAME", help="This machine's name (--elastic); the host's.")] = "",
    zone: Annotated[str, typer.Option(metavar="NAME", help="What may be lost as one (--elastic).")] = "",
    machine_gpu: Annotated[
        str, typer.Option(metavar="NAME", help="This machine's GPU type, where the plan has several (--elastic).")
    ] = "",
    memory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Snapshots in memory (--elastic); a folder in /dev/shm.")
    ] = None,
    upload: Annotated[
        str, typer.Option(metavar="URL", help="Steps are uploaded here too (--elastic): s3://…, gs://…, file:///….")
    ] = "",
    snapshot_every: Annotated[int, typer.Option(metavar="N", help="Steps between snapshots (--elastic).")] = 10,
    silence: Annotated[
        float, typer.Option(metavar="SECONDS", help="A machine or worker silent for longer is lost (--elastic).")
    ] = 5.0,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wait so long for machines that a plan needs (--elastic).")
    ] = 600.0,
    notices: Annotated[
        str,
        typer.Option(
            metavar="CLOUD,…", help="Watch for the notice of aws, gcp or azure that it takes this machine (--elastic)."
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show every rank's layers, groups, neighbours and memory; run nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> int:
    from shardwright.cli.elastic import present_device, run_elastic
    from shardwright.plans.document import load_plan
    from shardwright.runtime.job.launch import choose_device, inside_torchrun, launcher
    from shardwright.runtime.job.parent import end_with_parent
    from shardwright.runtime.job.settings import Settings
    from shardwright.runtime.layout.groups import layout_of

    if inside_torchrun():
        end_with_parent(launcher())
    found = load_plan(plan)
    precision = precision or found.job.precision
    layout = _checked(found, precision, layout_of)
    if dry_run:
        _show(layout, json=json)
        return 0
    if data is None:
        raise bad("--data", "is missing", "make a token file: shardwright tokens TEXT… -o corpus.bin")
    _require_positive(
        steps=steps, profile_steps=profile_steps, learning_rate=learning_rate, epsilon=epsilon, patience=patience
    )
    _require_no_less_than_0(
        warmup=warmup, decay=decay, weight_decay=weight_decay, clip=clip, checkpoint_every=checkpoint_every, keep=keep,
        beta1=beta1, beta2=beta2, final_fraction=final_fraction,
    )  # fmt: skip
    _require_below_1(beta1=beta1, beta2=beta2)
    _require_changes(accept_change or [])
    if profile is not None:
        _require_measurable(found)
        if not profile.absolute().parent.is_dir():
            raise bad(f"--profile {profile}", "is in no folder that exists", "make the folder, or name another")
    if trace is not None:
        require_writable(trace, [plan, data, profile], option="--trace")
    method = optimizer or ("sgd" if found.job.optimizer == "sgd" else "adamw")
    if method not in ("adamw", "sgd"):
        raise bad(f"--optimizer {method}", "is not known", "adamw or sgd")
    before = _before(resume)
    betas = before.get("betas", USUAL.betas)
    given = {
        "learning_rate": learning_rate,
        "warmup_steps": warmup,
        "decay_steps": decay,
        "final_fraction": final_fraction,
        "betas": (betas[0] if beta1 is None else beta1, betas[1] if beta2 is None else beta2),
        "epsilon": epsilon,
        "weight_decay": weight_decay,
        "clip": clip,
    }
    told = {name: value for name, value in given.items() if value is not None}
    kept = {name: value for name, value in before.items() if name != "seed"}
    settings = Settings(
        data=data,
        out=out,
        steps=steps,
        recipe=Recipe(**{**kept, **told, "method": method}),
        seed=before.get("seed", 0) if seed is None else seed,
        checkpoint_every=checkpoint_every,
        keep=keep,
        resume=resume,
        accept_change=tuple(accept_change or ()),
        weights=weights,
        save_weights=save_weights,
        config=config,
        device=choose_device(device) if not elastic else present_device(device),
        precision=cast('Literal["bf16", "fp16", "fp32"]', precision),
        patience_seconds=patience,
        profile=profile,
        profile_steps=profile_steps,
        trace=trace,
    )
    if elastic:
        _require_positive(snapshot_every=snapshot_every, silence=silence, wait=wait)
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
            snapshot_every=snapshot_every,
            silence_seconds=silence,
            wait_seconds=wait,
            notices=notices,
        )
    return _run(found, layout, settings, json=json)


def tokens(
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT…", help="Text files, in UTF-8.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.bin", help="Write the tokens here.")],
    tokenizer: Annotated[
        str, typer.Option(metavar="NAME", help="bytes, or a Hugging Face tokenizer.json or its folder.")
    ] = "bytes",
) -> None:
    from shardwright.runtime.storage.data import write_tokens

    if out.suffix != ".bin":
        raise bad(str(out), "does not end in .bin", "the header is written beside it as .json")
    file = write_tokens(out, texts, tokenizer)
    write(f"{out}: {len(file.tokens):,} tokens, vocabulary {file.vocab:,} ({tokenizer})")


def _checked(plan: Plan, precision: str, layout_of: Callable[[Plan], Layout]) -> Layout:
    """Return the layout of a plan that is legal and can be run. Raises SpecError with everything that is wrong."""
    from dataclasses import replace

    from shardwright.plans.check import check
    from shardwright.reports.text.problems import merged
    from shardwright.runtime.layout.limits import RUNNABLE_PRECISIONS, unrunnable

    if precision not in (*RUNNABLE_PRECISIONS, plan.job.precision):
        raise bad(f"--precision {precision}", "is not known", "bf16, fp16 or fp32")
    job = replace(plan.job, precision=cast("Precision", precision))
    problems = check(plan) or unrunnable(replace(plan, job=job))
    if problems:
        raise SpecError(*merged(problems))
    return layout_of(plan)


def _show(layout: Layout, *, json: bool) -> None:
    from shardwright.runtime.job.describe import layout_document, layout_text

    if json:
        write_json(layout_document(layout))
    else:
        write(layout_text(layout))


def _before(resume: Path | None) -> Mapping[str, Any]:
    """Return what travels with the checkpoint that a run goes on from, nothing for a new run."""
    if resume is None:
        return {}
    from shardwright.runtime.job.course import travelling
    from shardwright.runtime.storage.steps import manifest_of, newest_checkpoint

    return travelling(manifest_of(newest_checkpoint(resume)))


def _require_changes(names: Sequence[str]) -> None:
    for name in names:
        if name not in CHANGES:
            raise bad(f"--accept-change {name}", "is not known", f"one of {', '.join(CHANGES)}")


def _require_below_1(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not value < 1:
            raise bad(f"--{name}", f"{value:g} is not below 1", "give a number from 0 to below 1")


def _require_positive(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not value > 0:
            raise bad(f"--{name.replace('_', '-')}", f"{value:g} is not above 0", "give a positive number")


def _require_no_less_than_0(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not value >= 0:
            raise bad(f"--{name.replace('_', '-')}", f"{value:g} is below 0", "give 0 or a positive number")


def _require_measurable(plan: Plan) -> None:
    """Raise SpecError where the layers of a plan cannot stand for those of others."""
    stages = [stage for replica in plan.replicas for stage in replica.stages]
    if plan.layered:
        message = "under uneven FSDP a unit runs all micro-batches at once, which are not timed one by one"
        raise bad("--profile", message, "measure under a plan of equal copies on the same machines")
    if any(stage.context_parallel > 1 or stage.expert_parallel > 1 for stage in stages):
        message = "a layer profile has whole sequences and all experts, which ranks of this plan share"
        raise bad("--profile", message, "measure under a plan with context_parallel and expert_parallel 1")


def _run(plan: Plan, layout: Layout, settings: Settings, *, json: bool) -> int:
    from shardwright.runtime.job.finish import STATUS, STOP_REQUEST
    from shardwright.runtime.job.launch import inside_torchrun, launch, require_devices
    from shardwright.runtime.job.lock import locked

    if inside_torchrun():
        return _run_rank(plan, settings, json=json)
    _require_input(plan, settings)
    require_devices(settings.device, layout.world_size)
    with locked(settings.out):
        status = settings.out / STATUS
        status.unlink(missing_ok=True)
        code = launch(sys.argv[1:], layout.places, settings.out / STOP_REQUEST)
        if status.exists():
            _tell(status, json=json)
    return code


def _run_rank(plan: Plan, settings: Settings, *, json: bool) -> int:
    from contextlib import nullcontext

    from shardwright.reports.words import flagged
    from shardwright.runtime.job.finish import STATUS
    from shardwright.runtime.job.launch import speaks_for_all
    from shardwright.runtime.job.lock import locked
    from shardwright.runtime.job.status import DIVERGED, NOT_SAVED, DivergedError
    from shardwright.runtime.job.train import train as run

    first = speaks_for_all()
    with locked(settings.out) if first else nullcontext():
        if first:
            _require_input(plan, settings)
        try:
            document = run(plan, settings, _reporter())
        except DivergedError as error:
            print(f"\nerror: training has diverged: {flagged(str(error))}", file=sys.stderr, flush=True)
            return DIVERGED
        if first and (settings.out / STATUS).exists():
            _tell(settings.out / STATUS, json=json)
    return NOT_SAVED if document["unsaved"] else 0


def _require_input(plan: Plan, settings: Settings) -> None:
    """Raise SpecError where data or checkpoint are not what the run needs, before anything is started; say what differs
    from the checkpoint and may."""
    from shardwright.runtime.job.course import course_of, require_same_course
    from shardwright.runtime.job.start import require_fresh
    from shardwright.runtime.storage.data import make_samples, open_tokens, require_known
    from shardwright.runtime.storage.steps import manifest_of, newest_checkpoint

    file = open_tokens(settings.data)
    make_samples(file, plan.job.seq_len, settings.seed, plan.model.vocab, plan.job.global_batch)
    require_known(file, plan.model.vocab)
    require_fresh(settings)
    if settings.resume is not None:
        folder = newest_checkpoint(settings.resume)
        course = course_of(plan, settings, file)
        for change in require_same_course(manifest_of(folder), plan, course, settings.accept_change, str(folder)):
            print(f"other than in {folder}: {change}", file=sys.stderr)


def _tell(status: Path, *, json: bool) -> None:
    from shardwright.runtime.timing.summary import summary_text
    from shardwright.spec.text.reading import parse_json, read_text

    document: Any = parse_json(read_text(status), str(status))
    if json:
        write_json(document)
        return
    state = f"{document['state']} at step {document['step']}; checkpoint {document['checkpoint'] or '-'}"
    write(f"{summary_text(document)}\n{state}" if "ranks" in document else state)


def _reporter() -> Callable[[Row, int], None]:
    """Return a function that shows a step: one line that is overwritten on a terminal, else twenty lines in all."""
    terminal = sys.stderr.isatty()

    def show(row: Row, steps: int) -> None:
        last = row.step == steps
        if not terminal and not last and LINES * row.step // steps == LINES * (row.step - 1) // steps and row.step > 1:
            return
        filled = 20 * row.step // steps
        mfu = "" if row.mfu is None else f"  MFU {row.mfu:.1%}"
        text = (
            f"step {row.step}/{steps}  loss {row.loss:.4f}  norm {row.gradient_norm:.3f}  "
            f"{row.seconds:.3f} s/step  {row.tokens_per_second:,.0f} tokens/s{mfu}"
        )
        line = f"\r\033[K[{'#' * filled}{'.' * (20 - filled)}] {text}" if terminal else f"{text}\n"
        print(line, end="\n" if terminal and last else "", file=sys.stderr, flush=True)

    return show


train.__doc__ = HELP
tokens.__doc__ = TOKENS_HELP
