"""A worker: the process of one GPU, which outlives the generations that it trains in (PyTorch).

Its keeper gives it orders: `assign` a rank of a plan in a generation, `halt` when that is over, `settle` on a step with
the others, `end`. The main thread takes them one by one and waits for nothing else, as training has a thread of its own
(`training`), which has until the next rank is assigned to come out of what it does. Between generations the process
stays, and hands its state to the keeper if that is newer than the last snapshot."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from shardwright.errors import SpecError
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.recovery.run import Report, Settlement, reaches
from shardwright.runtime.recovery.wire import Message
from shardwright.runtime.recovery.worker import rendezvous
from shardwright.runtime.recovery.worker.link import KeeperLink, keep_log
from shardwright.runtime.recovery.worker.snapshot import parts_of
from shardwright.runtime.recovery.worker.training import UNWIND_SECONDS, RankState, Training, line_of
from shardwright.runtime.step.engine import Vote


def work(host: str, port: int, token: int, settings: Settings, secret: bytes) -> None:
    """Serve a keeper until it is done, or gone."""
    rendezvous.environment(host)
    torch.set_num_threads(max(int(os.environ.get("OMP_NUM_THREADS", "1")), 1))
    link = KeeperLink(host, port, {"token": token, "process": os.getpid()}, secret)
    training: Training | None = None
    while True:
        order = link.orders.get()
        match order.message["op"]:
            case "assign":
                if training is not None and training.stuck():
                    link.answer(order, stuck=True)  # which is this process's end
                    continue
                untold = None if training is None else training.untold  # until its end it may have told that
                training = None  # which has the groups
                if not rendezvous.torn_down(UNWIND_SECONDS):
                    link.answer(order, stuck=True)
                    continue
                message = order.message
                if message["logs"] is not None:
                    keep_log(Path(message["logs"]), message["generation"], message["rank"])
                training = Training(link, order, settings, untold)
            case "halt":
                report = Report(step=-1) if training is None else training.report()
                link.answer(order, report=asdict(report))
            case "settle":
                link.answer(order, kept=training is not None and _settled(training.state, order.message))
            case "end":
                link.answer(order)
                return


def _settled(state: RankState | None, message: Message) -> bool:
    """Reach the step that all survivors agreed on, hand over the state if the keeper wants it, and return whether this
    rank has it."""
    settlement = Settlement(step=message["step"], vote=message["vote"] and tuple(message["vote"]))
    if state is None or state.torn:
        return False
    try:
        with state.lock:
            if not reaches(state.report, settlement):
                return False
            if state.report.step < settlement.step and settlement.vote is not None:
                state.update(Vote(*settlement.vote))
            kept = state.report.step == settlement.step
            if kept and message["hand_over"]:
                writer = state.writer.of(parts_of(state.engine, message["mates"]))
                writer.write(state.report.step, state.engine.loss_scale, wait=True)
            return kept
    except (RuntimeError, OSError, SpecError) as error:
        print(f"the state could not be handed over: {line_of(error)}", file=sys.stderr, flush=True)
        return False
