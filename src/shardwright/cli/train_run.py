"""How `shardwright train` starts a run, shows its progress and tells its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.cli.output import write, write_json
from shardwright.cli.train_input import require_input
from shardwright.errors import bad

if TYPE_CHECKING:
    from shardwright.plans.plan import Plan
    from shardwright.runtime.job.metrics import Row
    from shardwright.runtime.job.settings import Settings
    from shardwright.runtime.layout.groups import Layout

LINES = 20


def show_layout(layout: Layout, *, json: bool) -> None:
    from shardwright.runtime.job.describe import layout_document, layout_text

    if json:
        write_json(layout_document(layout))
    else:
        write(layout_text(layout))


def run_plan(plan: Plan, layout: Layout, settings: Settings, logs: Path | None, *, json: bool) -> int:
    from shardwright.runtime.job.finish import STATUS, STOP_REQUEST
    from shardwright.runtime.job.launch import inside_torchrun, launch, launcher, require_devices
    from shardwright.runtime.job.lock import locked

    if inside_torchrun():
        if logs is not None and launcher() is None:
            hint = f"tell torchrun: --log-dir {logs} --redirects 3 --tee 3"
            raise bad(f"--logs {logs}", "is for runs that `train` starts itself", hint)
        return _run_rank(plan, settings, json=json)
    require_input(plan, settings)
    require_devices(settings.device, layout.world_size)
    with locked(settings.out):
        status = settings.out / STATUS
        status.unlink(missing_ok=True)
        code = launch(sys.argv[1:], layout.places, settings.out / STOP_REQUEST, logs)
        if status.exists():
            _tell(status, json=json)
    return code


def _run_rank(plan: Plan, settings: Settings, *, json: bool) -> int:
    from contextlib import nullcontext

    from shardwright.reports.words import flagged
    from shardwright.runtime.job.ending import DIVERGED, NOT_SAVED, DivergedError
    from shardwright.runtime.job.finish import STATUS
    from shardwright.runtime.job.launch import speaks_for_all
    from shardwright.runtime.job.lock import locked
    from shardwright.runtime.job.metrics import about, tracked
    from shardwright.runtime.job.train import train as run

    first = speaks_for_all()
    with locked(settings.out) if first else nullcontext():
        if first:
            require_input(plan, settings)
        try:
            with tracked(settings, about(plan, settings)) as track:
                document = run(plan, settings, _reporter(plan, track))
        except DivergedError as error:
            print(f"\nerror: training has diverged: {flagged(str(error))}", file=sys.stderr, flush=True)
            return DIVERGED
        if first and (settings.out / STATUS).exists():
            _tell(settings.out / STATUS, json=json)
    return NOT_SAVED if document["unsaved"] else 0


def _tell(status: Path, *, json: bool) -> None:
    from shardwright.runtime.timing.summary import summary_text
    from shardwright.spec.text.reading import parse_json, read_text

    document: Any = parse_json(read_text(status), str(status))
    if json:
        write_json(document)
        return
    state = f"{document['state']} at step {document['step']}; checkpoint {document['checkpoint'] or '-'}"
    if held_out := document.get("held_out"):
        state = f"held-out loss {held_out['loss']:.4f} at step {held_out['step']}\n{state}"
    write(f"{summary_text(document)}\n{state}" if "ranks" in document else state)


def _reporter(plan: Plan, track: Callable[[Row], None]) -> Callable[[Row, int], None]:
    """Return a function that tells trackers of a step, and shows it: one line that is overwritten on a terminal, else
    twenty lines in all. Beside the time of a step stands what was predicted, after it what is left at the pace so
    far."""
    from shardwright.runtime.job.ending import leave
    from shardwright.units import format_seconds

    terminal = sys.stderr.isatty()
    predicted = "" if plan.prediction is None else f" (predicted {plan.prediction.iteration_seconds:.3f})"
    since: list[float] = []  # when the first step of this run was done: that one warms up

    def show(row: Row, steps: int) -> None:
        track(row)
        last, now = row.step == steps, time.monotonic()
        since[:] = since or [now, float(row.step)]
        due = last or row.step == 1 or LINES * row.step // steps > LINES * (row.step - 1) // steps
        if not (terminal or due or row.held_out_loss is not None):
            return
        filled = 20 * row.step // steps
        held_out = "" if row.held_out_loss is None else f"  held-out loss {row.held_out_loss:.4f}"
        mfu = "" if row.mfu is None else f"  MFU {row.mfu:.1%}"
        done = row.step - since[1]
        left = f"  {format_seconds((now - since[0]) / done * (steps - row.step))} left" if done and not last else ""
        text = (
            f"step {row.step}/{steps}  loss {row.loss:.4f}{held_out}  norm {row.gradient_norm:.3f}  "
            f"{row.seconds:.3f} s/step{predicted}  {row.tokens_per_second:,.0f} tokens/s{mfu}{left}"
        )
        line = f"\r\033[K[{'#' * filled}{'.' * (20 - filled)}] {text}" if terminal else f"{text}\n"
        try:
            print(line, end="\n" if terminal and last else "", file=sys.stderr, flush=True)
        except OSError:  # its terminal has hung up, of which a rank in a session of its own is not told
            leave((1, 2))

    return show
