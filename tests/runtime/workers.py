"""Processes that run plans on gloo, and what they report: losses, gradient norms and final weights."""

from __future__ import annotations

import datetime
import multiprocessing.connection
import os
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests import forked
from tests.runtime.samples import STEPS, tokens_of

from shardwright.plans.plan import Plan
from shardwright.runtime.job.worker import meet
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model.blocks import compiled, layer_forward
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import Initial, as_kept, beside, seeded
from shardwright.runtime.state import buckets
from shardwright.runtime.state.blocks import Blocks
from shardwright.runtime.state.pieces import CutShape, StatePiece, copy_overlap, holdings_of, overlaps, parameter_shapes
from shardwright.runtime.state.recipe import LossScale, Recipe
from shardwright.runtime.state.slots import Slot
from shardwright.runtime.step.engine import Engine, evaluate, make_engine, run_each_kind, train_step
from shardwright.runtime.storage.checkpoint import open_checkpoint, restore, save_checkpoint
from shardwright.runtime.storage.manifest import Course

WHOLE_RUN_SECONDS, SLOW_SECONDS = 1800.0, 3.0


@dataclass
class Case:
    """A plan to run. Plans with fewer ranks than processes leave the last processes idle. At the end a checkpoint is
    written to the folder `save`, at the beginning one is read from `load`: that of an earlier case. `first_scale` is
    that of the loss in fp16. Attention stays within documents that a token `end` ends. Units share a bucket of up to
    `largest_merged` elements. Layers are compiled by `backend` ("slow": eager, after seconds in which the patience of waiting ranks
    runs out where stages compile one after another), and what goes wrong there is an error."""

    name: str
    plan: Plan
    recipe: Recipe
    steps: int = STEPS
    seed: int = 7
    save: str = ""
    load: str = ""
    first_scale: float | None = None
    end: int | None = None
    largest_merged: int = buckets.LARGEST_MERGED_ELEMENTS
    backend: str = ""
    patience_seconds: float = 60.0


@dataclass
class Outcome:
    """What all ranks report alike, the whole weights, and the most buckets of sharded weights whole at a time. `held_out`
    is the loss of the last weights on the samples that would be next, `gradients` are the last step's."""

    losses: list[float]
    norms: list[float]
    scales: list[LossScale]
    most_gathered: int
    held_out: float
    weights: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]


def run_cases(cases: Sequence[Case], processes: int) -> dict[str, Outcome]:
    """Run all cases one after another in the same processes and return what each gave."""
    with tempfile.TemporaryDirectory() as folder:
        context = forked.context()
        running = [
            context.Process(target=_work, args=(rank, processes, cases, folder), daemon=True)
            for rank in range(processes)
        ]
        for process in running:
            process.start()
        while (alive := [process for process in running if process.is_alive()]) and not any(
            process.exitcode for process in running
        ):
            multiprocessing.connection.wait([process.sentinel for process in alive])
        failed = [rank for rank, process in enumerate(running) if process.exitcode]
        for process in running:
            process.kill()
        errors = "".join(path.read_text() for path in sorted(Path(folder).glob("*.error")))
        assert not failed, f"ranks {failed} failed: {errors}"
        return {case.name: _collected(Path(folder), case) for case in cases}


def _work(rank: int, processes: int, cases: Sequence[Case], folder: str) -> None:
    try:
        _run_all(rank, processes, cases, folder)
    except Exception:
        Path(f"{folder}/{rank}.error").write_text(f"rank {rank}: {traceback.format_exc()}")
        raise


def _fail(words: str) -> None:
    raise AssertionError(words)


def _slowly(graph: Any, inputs: Any) -> Any:
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    def compile_one(module: Any, _: Any) -> Any:
        time.sleep(SLOW_SECONDS)
        return boxed_nop(module, [])

    return aot_autograd(fw_compiler=compile_one)(graph, inputs)


BACKENDS: dict[str, Any] = {"slow": _slowly}


def _store(rank: int, folder: Path) -> Any:
    """Return what the processes meet at, which waits without a processor's time, as a FileStore does not."""
    distributed: Any = dist
    whole_run = datetime.timedelta(seconds=WHOLE_RUN_SECONDS)
    place = folder / "port"
    if rank == 0:
        store = distributed.TCPStore("127.0.0.1", 0, None, True, whole_run, wait_for_workers=False)
        (folder / "port.new").write_text(str(store.port))
        (folder / "port.new").replace(place)
        return store
    end = time.monotonic() + WHOLE_RUN_SECONDS
    while not place.exists():
        assert time.monotonic() < end, f"{place} never came"
        time.sleep(0.02)
    return distributed.TCPStore("127.0.0.1", int(place.read_text()), None, False, whole_run, wait_for_workers=False)


def _run_all(rank: int, processes: int, cases: Sequence[Case], folder: str) -> None:
    torch.set_num_threads(1)
    distributed: Any = dist
    store = _store(rank, Path(folder))
    for number, case in enumerate(cases):
        layout = layout_of(case.plan)
        prefixed = distributed.PrefixStore(f"case {number}", store)
        if number:  # processes that had nothing to do would else wait in the next case, and not for ever
            store.get(f"case {number - 1} is done")
        if rank < layout.world_size:
            patience = datetime.timedelta(seconds=case.patience_seconds)
            dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=layout.world_size, timeout=patience)
            begin = time.time()
            try:
                result = run_case(case, rank, Path(folder))
            except Exception as error:
                error.add_note(f"in case {case.name}")
                raise
            torch.save(result, f"{folder}/{number}-{rank}.pt")
            if rank == 0 and "SHARDWRIGHT_TEST_TIMES" in os.environ:
                print(f"{case.name}: {time.time() - begin:.1f} s", flush=True)
            dist.barrier()
            dist.destroy_process_group()
            if rank == 0:
                store.set(f"case {number} is done", "")
        Path(f"{folder}/{case.name}.number").write_text(str(number))


def run_case(case: Case, rank: int, folder: Path) -> dict[str, Any]:
    layout = layout_of(case.plan)
    buckets.LARGEST_MERGED_ELEMENTS = case.largest_merged
    engine = make_engine(
        layout, rank, make_process_groups(layout, rank), details=Details(), recipe=case.recipe,
        initial=initial_of(case),
        precision=case.plan.job.precision, device=torch.device("cpu"), end=case.end,
        layer=compiled(_fail, backend=BACKENDS.get(case.backend, case.backend)) if case.backend else layer_forward,
    )  # fmt: skip
    if case.backend:
        run_each_kind(engine, evaluates=True)
        meet(dist.distributed_c10d._get_default_store(), "compiled", layout.world_size)
    if case.first_scale is not None:
        engine.loss_scale = LossScale(value=case.first_scale)
    losses, norms, scales, first = [], [], [engine.loss_scale], 0
    if case.load:
        checkpoint = open_checkpoint(folder / case.load)
        assert not restore(engine, checkpoint)
        first, scales = checkpoint.step, [engine.loss_scale]
    gathered = [0]

    def observe(unit: int, x: torch.Tensor) -> torch.Tensor:
        gathered.append(whole_weights(engine))
        return x

    def count(_: str) -> None:
        gathered.append(whole_weights(engine))

    for step in range(first, first + case.steps):
        result = train_step(engine, batch_of(engine, step), step, observe=observe, note=count)
        assert whole_weights(engine) == 0, "nothing stays gathered"
        losses.append(result.loss)
        norms.append(result.gradient_norm)
        scales.append(engine.loss_scale)
    held_out = evaluate(engine, batch_of(engine, first + case.steps))
    assert whole_weights(engine) == 0, "nothing stays gathered"
    if case.save:
        course = Course(settings={}, data={}, random={"seed": case.seed})
        assert not save_checkpoint(engine, folder / case.save, first + case.steps, course, keep=0).problem
    found = {"losses": losses, "norms": norms, "scales": scales, "held_out": held_out}
    return {**found, "gathered": max(gathered), "pieces": pieces_of(engine), "gradients": gradients_of(engine)}


def initial_of(case: Case) -> Initial | None:
    """Return the weights of a case: what a checkpoint sets is left out, frozen weights are not in it."""
    model, adapter = seeded(case.plan.model, case.seed), case.plan.job.adapter
    if adapter is not None:
        return beside(as_kept(model, adapter), case.seed)
    return None if case.load else model


def whole_weights(engine: Engine) -> int:
    """Return how many buckets of sharded weights are whole in memory."""
    weights = [buffer.weights for buffer in engine.store.buffers if buffer.weights.sharded]
    return sum(flat.whole.untyped_storage().nbytes() > 0 for flat in weights)


def batch_of(engine: Engine, step: int) -> Any:
    plan, place = engine.layout.plan, engine.place

    def batch(micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        start, count = place.samples(micro_batch)
        first = step * plan.job.global_batch + start
        rows = [torch.from_numpy(tokens_of(first + i, plan.model.vocab, plan.job.seq_len)) for i in range(count)]
        both = torch.stack(rows)
        return both[:, :-1], both[:, 1:]

    return batch


def pieces_of(engine: Engine) -> list[tuple[str, int | None, int, int, torch.Tensor, tuple[int, ...]]]:
    found = []
    for buffer in engine.store.buffers:
        engine.unsharding.reached(buffer.bucket.units[0])
        for p in buffer.bucket.pieces:
            value = buffer.weights.piece(p).float().clone()
            found.append((p.parameter.name, p.parameter.dim, p.start, p.stop, value, p.parameter.shape))
    engine.unsharding.release()
    return found


def gradients_of(engine: Engine) -> list[tuple[StatePiece, CutShape, torch.Tensor]]:
    """Return the part of the summed gradients that a rank updates, or would under ZeRO-1."""
    shapes, parts = parameter_shapes(engine.layout), []
    for buffer in engine.store.buffers:
        start, stop = buffer.bucket.own(engine.place.rank, sharded=True)
        values = buffer.gradients.part(start, stop)
        for item in holdings_of(buffer.bucket, start, stop, engine.layout.plan.model.vocab, "gradient"):
            part = values[item.at - start :][: item.piece.elements].clone()
            parts.append((item.piece, shapes[item.piece.parameter], part))
    return parts


def whole_gradients(parts: Iterable[tuple[StatePiece, CutShape, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return gradients of whole parameters from the parts of all ranks."""
    whole: dict[str, np.ndarray] = {}
    for piece, cut, values in parts:
        target = whole.setdefault(piece.parameter, np.full(cut.shape, np.nan, np.float32)).reshape(-1)
        everything = replace(piece, start=0, stop=cut.shape[cut.dim], low=0, high=target.size)
        for overlap in overlaps(piece, everything, cut):
            copy_overlap(overlap, values.numpy(), target)
    return {name: torch.from_numpy(values) for name, values in whole.items()}


def _collected(folder: Path, case: Case) -> Outcome:
    number = int((folder / f"{case.name}.number").read_text())
    results = [torch.load(path, weights_only=False) for path in sorted(folder.glob(f"{number}-*.pt"))]
    weights: dict[str, torch.Tensor] = {}
    for result in results:
        assert result["losses"] == results[0]["losses"], "all ranks report the same loss"
        assert result["scales"] == results[0]["scales"], "all ranks have the same scale"
        assert result["held_out"] == results[0]["held_out"], "all ranks report the same loss"
        for name, dim, start, stop, value, shape in result["pieces"]:
            whole = weights.setdefault(name, torch.full(shape, torch.nan))
            target = whole if dim is None else whole.narrow(dim, start, stop - start)
            assert bool(torch.isnan(target).all()) or torch.allclose(target, value, rtol=1e-6, atol=1e-7), name
            target.copy_(value)
    most = max(result["gathered"] for result in results)
    first = results[0]
    gradients = whole_gradients(part for result in results for part in result["gradients"])
    return Outcome(first["losses"], first["norms"], first["scales"], most, first["held_out"], weights, gradients)


def join_pair(path: str, rank: int) -> None:
    """Join the other of two processes by a file."""
    store = dist.FileStore(path, 2)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))


def moment_bytes(slot: Slot) -> int:
    """Return what the moments of a slot take of memory."""
    kept = slot.moments.values()
    return sum(m.codes.nbytes + m.scales.nbytes if isinstance(m, Blocks) else m.nbytes for m in kept)
