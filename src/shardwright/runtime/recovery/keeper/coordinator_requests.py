"""What a keeper answers the coordinator: halt, settle, say what it holds, fetch, start, commit, end. No PyTorch.

The order of a recovery is that of the methods. Every step of it names its generation; one that is older than the newest
that this keeper has promised itself to is refused, so that of two coordinators one alone can go on.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from shardwright.files import write_atomically
from shardwright.plans.document import from_document, to_document
from shardwright.recovery.quorum import Generation, Machine, RankSeat
from shardwright.recovery.transfer import CLOUD, DISK, MEMORY
from shardwright.runtime.job import metrics
from shardwright.runtime.job.course import RunIdentity
from shardwright.runtime.recovery.keeper.protection import Protection
from shardwright.runtime.recovery.keeper.worker_pool import WorkerPool
from shardwright.runtime.recovery.keeper.worker_requests import Values, WorkerRequests
from shardwright.runtime.recovery.run import (
    ENDED,
    GenerationBase,
    GenerationPromise,
    KeeperOptions,
    Settlement,
    reaches,
    report_of,
)
from shardwright.runtime.recovery.state.inventory import HeldPiece, held_row, pieces_of, rows_of
from shardwright.runtime.recovery.state.snapshots import Snapshot, Snapshots, is_sound
from shardwright.runtime.recovery.state.transfers import Fetched, PieceSource, Reader, fetch, wanted_of
from shardwright.runtime.recovery.wire import Message, RefusedError, Reply, answered
from shardwright.runtime.state.pieces import StoredPiece

FETCHED = "fetched"
STARTING_SECONDS = 600.0  # so long workers have until they can train, with layers to compile and state to read
STATUS = "elastic.json"  # generation, machines, and the process of each GPU of this one


class CoordinatorRequests:
    """Answers the coordinator. `base` is the generation that this keeper last started, with its plan."""

    def __init__(
        self,
        options: KeeperOptions,
        run: RunIdentity,
        snapshots: Snapshots,
        pool: WorkerPool,
        from_workers: WorkerRequests,
        end: Callable[[int], None],
    ) -> None:
        self._options, self._run, self._snapshots, self._pool = options, run, snapshots, pool
        self._from_workers, self._end = from_workers, end
        nothing = Generation(number=0, machines=())
        self._promise = GenerationPromise(base=GenerationBase(generation=nothing, plan=options.plan))
        self._protection = Protection(options, run, snapshots, from_workers, self._promise)
        self._disk, self._cloud = self._protection.disk, self._protection.cloud
        self._reports: dict[int, Message] = {}
        self._ranks: dict[int, int] = {}
        self._state: tuple[StoredPiece, ...] = ()
        self._promise.newest = max((held.generation for held in self._holdings()), default=0)

    @property
    def base(self) -> GenerationBase:
        return self._promise.base

    async def answer(self, message: Message) -> Reply:
        """Answer one request. Raises RefusedError where it is of a generation that is over."""
        op, number = message["op"], message.get("generation", self._promise.newest)
        if op in ("copy", "inventory"):
            return await self._protection.copy(message) if op == "copy" else (self._inventory(), b"")
        if number < self._promise.newest and op == "halt":
            return {"promised": self._promise.newest, "reports": {}}, b""
        self._still(number)
        phases = {"halt": self._halt, "settle": self._settle, "fetch": self._fetch, "start": self._start}
        if op in phases:
            return await phases[op](message), b""
        match op:
            case "commit":
                await self._protection.commit(message)
            case "damaged":
                self._damaged(message)
            case "flush":
                await self._protection.flush(message)
            case "stop":
                await self._pool.stop()
            case "end":
                self._ended(message)
            case _:
                raise RefusedError(f"no keeper answers {op}")
        return {}, b""

    def _still(self, number: int) -> None:
        """Raise RefusedError where a generation is over."""
        if number < self._promise.newest:
            raise RefusedError(f"generation {number} is over, {self._promise.newest} is promised")

    async def _halt(self, message: Message) -> Message:
        """End the generation before the message's on this machine: nothing trains when this returns."""
        number = self._promise.newest = message["generation"]
        for values in self._from_workers.values.values():
            await values.close()
        self._from_workers.values = {number: Values()}
        self._reports |= await self._pool.halt(number, self._options.silence_seconds)
        await self._from_workers.release()
        return {"reports": {str(slot): report for slot, report in self._reports.items()}}

    async def _settle(self, message: Message) -> Message:
        """Bring all workers to the step agreed on, have their state if it is newer than the snapshots, and say what
        this machine holds."""
        settlement = Settlement(step=message["step"], vote=message["vote"] and tuple(message["vote"]))
        able = {
            slot
            for slot, report in self._reports.items()
            if settlement.step >= 0 and reaches(report_of(report), settlement)
        }
        wanted = settlement.step > 0 and settlement.step != self._from_workers.complete
        orders = {
            slot: {
                "op": "settle",
                "step": settlement.step,
                "vote": settlement.vote,
                "hand_over": wanted and slot in able,
                "mates": [self._ranks[other] for other in able if other < slot],
            }
            for slot in self._reports
        }
        self._from_workers.begin_generation(-1)
        await self._pool.settle(orders, self._options.silence_seconds + 30.0)
        self._reports = {}
        scales = {str(s.step): s.scale for s in self._snapshots.by_file.values()}
        held = [held_row(item) for item in self._holdings()]
        return {"held": held, "scales": scales, "committed": self._snapshots.committed}

    def _inventory(self) -> Message:
        """Say what this machine knows, to someone who asks and changes nothing."""
        generation = self.base.generation
        return {
            "generation": generation.number,
            "machines": [asdict(machine) for machine in generation.machines],
            "seated": [asdict(machine) for machine in self.base.seated],
            "plan": to_document(self.base.plan),
            "held": [held_row(item) for item in self._holdings()],
        }

    def _holdings(self) -> Iterator[HeldPiece]:
        yield from self._snapshots.holdings()
        if self._disk is not None:
            yield from self._disk.holdings()

    async def _fetch(self, message: Message) -> Message:
        """Have every piece that this machine needs: verify its own, read the others. Pieces that are damaged or do not
        come are returned with where they were."""
        kept = [(stored, tier) for tier in (MEMORY, DISK) for stored in pieces_of(message["own"][str(tier)])]
        sound = await asyncio.gather(*(asyncio.to_thread(is_sound, self._folder(tier), s) for s, tier in kept))
        self._still(message["generation"])
        me = self._options.machine.name
        damaged = [stored for (stored, _), good in zip(kept, sound, strict=True) if not good]
        state = tuple(self._whole_path(stored, tier) for stored, tier in kept)
        failed = [[rows_of([stored])[0], [me], "it is damaged"] for stored in damaged]
        file = f"{message['generation']:06d}-{FETCHED}.0.bin"
        wanted = [wanted_of(item, file) for item in message["wanted"]]
        if not wanted:
            self._state = state
            return {"failed": failed}
        readers: dict[int, Reader] = {DISK: self._own_range, CLOUD: self._cloud_range}
        self._snapshots.forget(file)
        fetched: Fetched = await fetch(wanted, self._snapshots.folder, file, readers, self._options.secret)
        self._still(message["generation"])
        self._snapshots.done(
            Snapshot(
                file=file,
                step=message["step"],
                generation=message["of_generation"],
                origin=FETCHED,
                pieces=fetched.pieces,
                scale=message["scale"],
            )
        )
        self._state = state + tuple(self._whole_path(stored, MEMORY) for stored in fetched.pieces)
        return {"failed": failed + [[rows_of([s])[0], list(machines), why] for s, machines, why in fetched.failed]}

    async def _start(self, message: Message) -> Message:
        """Start the workers of this machine in the generation, and return once all of them can train."""
        plan, me = from_document(message["plan"]), self._options.machine.name
        machines = tuple(Machine(**item) for item in message["machines"])
        where = [RankSeat(machine=name, slot=slot) for name, slot in message["seats"]]
        mine = {rank: seat.slot for rank, seat in enumerate(where) if seat.machine == me}
        self._ranks = {slot: rank for rank, slot in mine.items()}
        self._from_workers.begin_generation(len(mine))
        self._protection.begin_generation(plan, where, machines)
        self._snapshots.go_back(message["step"])
        out = self._options.settings.out
        metrics.begin(out / metrics.FILE, message["step"] + 1)
        orders = {
            slot: {
                "op": "assign",
                "generation": message["generation"],
                "plan": message["plan"],
                "rank": rank,
                "slot": slot,
                "mates": [other for other in mine if other < rank],
                "store": message["store"],
                "step": message["step"],
                "kept": message["kept"],
                "origin": self._run.origin,
                "scale": message["scale"],
                "pieces": rows_of(self._state),
                "folder": str(self._snapshots.folder),
                "snapshot_every": self._options.snapshot_every,
                "logs": None if self._options.logs is None else str(self._options.logs),
            }
            for rank, slot in mine.items()
        }
        why = await self._pool.assign(orders, STARTING_SECONDS)
        self._still(message["generation"])
        if not why:
            generation = Generation(number=message["generation"], machines=machines)
            by_name = {machine.name: machine for machine in machines}
            self._promise.base = GenerationBase(
                generation=generation, plan=plan, seated=tuple(by_name[n] for n in message["seated"])
            )
            workers = {str(slot): process for slot, process in sorted(self._pool.processes().items())}
            status = {"generation": generation.number, "machines": generation.names, "workers": workers}
            write_atomically(out / STATUS, json.dumps(status) + "\n")
        return {"unready": why}

    def _whole_path(self, stored: StoredPiece, tier: int) -> StoredPiece:
        return replace(stored, file=str((self._folder(tier) / stored.file).resolve()))

    def _ended(self, message: Message) -> None:
        """End, and say why where the run has failed. Snapshots of a run that ended well go, if the disk or other
        machines have what they hold."""
        if message.get("reason"):
            print(message["reason"], file=sys.stderr, flush=True)
        if message["status"] == ENDED:
            if message.get("left") or self._protection.expendable():
                self._snapshots.delete()
            else:
                print(f"the newest step is in {self._snapshots.folder} alone", file=sys.stderr, flush=True)
        self._end(message["status"])

    def _damaged(self, message: Message) -> None:
        """Forget pieces that turned out not to be what was written."""
        for stored in pieces_of(message["rows"]):
            self._snapshots.drop(stored)
            if self._disk is not None:
                self._disk.drop(stored)

    def _folder(self, tier: int) -> Path:
        return self._snapshots.folder if tier == MEMORY else Path(self._options.disk or "")

    async def _own_range(self, source: PieceSource) -> bytes:
        message = {
            "tier": DISK,
            "file": source.file,
            "start": source.offset + source.start,
            "stop": source.offset + source.stop,
        }
        return await asyncio.to_thread(self._from_workers.piece, message)

    async def _cloud_range(self, source: PieceSource) -> bytes:
        if self._cloud is None:
            raise RefusedError("this machine has no object store")
        start = source.offset + source.start
        read = partial(self._cloud.read, source.file, start, source.offset + source.stop)
        return await answered(self._cloud.what, read)
