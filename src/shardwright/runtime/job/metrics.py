"""The metrics of a run: as CSV, one row a step, flushed as they come, in the same file where training goes on; and to
TensorBoard and Weights & Biases, by their own packages. What fails there ends no run.
"""

from __future__ import annotations

import csv
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shardwright.errors import bad
from shardwright.files import write_atomically
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.runtime.job.settings import Settings

FOLDER, RUN_ID = "tensorboard", "wandb-id"
FLUSH_SECONDS = 10  # a rank that is killed loses the points since
Tracker = tuple[Callable[[int, Mapping[str, float]], object], Callable[[], object]]  # takes the figures of a step; ends


@record
class Row:
    """One step, counted from 1. `mfu` is None where the peak of the devices is not known, `held_out_loss` where it was
    not taken then."""

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    seconds: float
    tokens_per_second: float
    mfu: float | None
    pass_seconds: float
    sync_seconds: float
    update_seconds: float
    peak_memory_bytes: int
    held_out_loss: float | None = None


FILE = "metrics.csv"
COLUMNS = tuple(field.name for field in fields(Row))


def begin(path: Path, first_step: int) -> None:
    """Prepare the file for rows from step `first_step` on: later ones, of a run that was given up, are dropped. Raises
    SpecError where it cannot be written."""
    kept: list[list[str]] = []
    if first_step > 1 and path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        kept = [row for row in rows[1:] if row and row[0].isdigit() and int(row[0]) < first_step]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *kept])
    except OSError as error:
        raise bad(str(path), f"cannot be written: {error.strerror}", "check the folder") from None


def append(path: Path, row: Row) -> None:
    values = [getattr(row, name) for name in COLUMNS]
    with path.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow(["" if value is None else value for value in values])


def require_trackers(settings: Settings) -> None:
    """Raise SpecError where metrics are to go to a package that is missing."""
    wanted = {"tensorboard": settings.tensorboard, "wandb": bool(settings.wandb)}
    for package in (name for name, there in wanted.items() if there and find_spec(name) is None):
        raise bad(f"`{package}=`", f"needs the package {package}", f"pip install {package}, or leave the option out")


def about(plan: Plan, settings: Settings) -> dict[str, Any]:
    """Return what a run is, for those who compare several."""
    return {
        "model": plan.model.name,
        "global_batch": plan.job.global_batch,
        "seq_len": plan.job.seq_len,
        "cluster": plan.cluster.name,
        "gpus": plan.gpus,
        "precision": settings.precision,
        "seed": settings.seed,
        **asdict(settings.recipe),
    }


def new_id() -> str:
    """Return a name that no other run has."""
    return uuid.uuid4().hex


def kept_id(out: Path) -> str:
    """Return the name of a run at Weights & Biases as its folder has it, "" where it has none yet."""
    path = out / RUN_ID
    return path.read_text(encoding="utf-8").strip() if path.exists() else ""


def keep_id(out: Path, name: str) -> None:
    """Have the folder of a run know its name at Weights & Biases."""
    write_atomically(out / RUN_ID, name + "\n")


@contextmanager
def tracked(settings: Settings, course: Mapping[str, Any]) -> Iterator[Callable[[Row], None]]:
    """Give a function that sends steps to the trackers of a run, of which `course` says what it is. They are opened by
    the first step, on the rank that has steps to tell. One that fails is named, and left out from then on."""
    opening: dict[str, Callable[[int], Tracker]] = {}
    if settings.tensorboard:
        opening["TensorBoard"] = partial(_tensorboard, settings)
    if settings.wandb:
        opening["Weights & Biases"] = partial(_wandb, settings, course)
    trackers: dict[str, Tracker] = {}

    def send(name: str, step: int, figures: Mapping[str, float]) -> None:
        if name not in trackers:
            trackers[name] = opening[name](step)
        trackers[name][0](step, figures)

    def report(row: Row) -> None:
        figures = {name: float(value) for name, value in asdict(row).items() if value is not None and name != "step"}
        for name in list(opening):
            if not _done(name, partial(send, name, row.step, figures)):
                del opening[name]

    try:
        yield report
    finally:
        for name, (_, end) in trackers.items():
            _done(name, end)


def _done(name: str, call: Callable[[], object]) -> bool:
    """Return whether a call could be done; a tracker may raise whatever its service does."""
    try:
        call()
    except Exception as error:
        print(f"\nwarning: {name} gets no more metrics: {error}", file=sys.stderr, flush=True)
        return False
    return True


def _tensorboard(settings: Settings, step: int) -> Tracker:
    """Return a writer for a folder beside the metrics; what a run that was given up wrote from `step` on is hidden."""
    from torch.utils.tensorboard.writer import SummaryWriter

    writer: Any = SummaryWriter(str(settings.out / FOLDER), purge_step=step, flush_secs=FLUSH_SECONDS)

    def write(step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    return write, writer.close


def _wandb(settings: Settings, told: Mapping[str, Any], step: int) -> Tracker:
    """Return a writer for a run of a project: the same one whenever training goes on in its folder."""
    import wandb

    if not kept_id(settings.out):
        keep_id(settings.out, new_id())
    run: Any = wandb.init(
        project=settings.wandb,
        id=kept_id(settings.out),
        resume="allow",
        name=settings.out.resolve().name,
        dir=str(settings.out),
        config=dict(told),
    )
    return lambda step, figures: run.log(dict(figures), step=step), run.finish
