"""What a keeper does when the coordinator asks: halt, settle, say what it holds, fetch, start, commit, end. No PyTorch.

The order of a recovery is that of the methods. Every step of it names its generation; one that is older than the newest
that this keeper has promised itself to is refused, so that of two coordinators one alone can go on.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwright.files import write_atomically
from shardwright.plans.document import from_document, to_document
from shardwright.recovery.quorum import Generation, Machine
from shardwright.recovery.seats import Seat
from shardwright.recovery.transfer import CLOUD, DISK, MEMORY
from shardwright.runtime.job import metrics
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.recovery.base import Base
from shardwright.runtime.recovery.channel import LostError, Message, RefusedError, Reply, connect, refuse
from shardwright.runtime.recovery.course import Run
from shardwright.runtime.recovery.desk import Desk
from shardwright.runtime.recovery.fetch import Fetched, Reader, Source, Wanted, fetch
from shardwright.runtime.recovery.inventory import Held, held_row
from shardwright.runtime.recovery.needs import held_pieces
from shardwright.runtime.recovery.options import KeeperOptions
from shardwright.runtime.recovery.rows import machine_data, machine_of, pieces_of, rows_of, wanted_of
from shardwright.runtime.recovery.settlement import Settlement, reaches, report_of
from shardwright.runtime.recovery.snapshots import Snapshot, Snapshots, is_sound
from shardwright.runtime.recovery.staff import Staff
from shardwright.runtime.recovery.store_server import Values
from shardwright.runtime.recovery.tiers import Cloud, DiskTier
from shardwright.runtime.storage.pieces import StoredPiece, split

FETCHED = "fetched"
STATUS = "elastic.json"
"""Generation, machines, and the process of each GPU of this one."""
COPY_SECONDS = 60.0


class Duties:
    """Answers the coordinator. `base` is the generation that this keeper last started, with its plan."""

    def __init__(
        self,
        options: KeeperOptions,
        run: Run,
        snapshots: Snapshots,
        staff: Staff,
        desk: Desk,
        end: Callable[[int], None],
    ) -> None:
        self._options, self._run, self._snapshots, self._staff, self._desk = options, run, snapshots, staff, desk
        self._end = end
        self._disk = DiskTier(options.disk, options.machine.name, run.name) if options.disk else None
        self._cloud = Cloud(options.upload) if options.upload else None
        self.base = Base(generation=Generation(number=0, machines=()), plan=options.plan)
        self._promised = 0
        self._saving: asyncio.Task[None] | None = None
        self._saved = -1
        self._reports: dict[int, Message] = {}
        self._ranks: dict[int, int] = {}
        self._partner: Machine | None = None
        self._lonely: frozenset[Any] = frozenset()
        self._state: tuple[StoredPiece, ...] = ()
        desk.protect = self._protect
        self._promised = max((held.generation for held in self._holdings()), default=0)

    async def answer(self, message: Message) -> Reply:
        """Answer one request. Raises RefusedError where it is of a generation that is over."""
        op, number = message["op"], message.get("generation", self._promised)
        if op in ("copy", "inventory"):
            return await self._copy(message) if op == "copy" else (self._inventory(), b"")
        if number < self._promised and op == "halt":
            return {"promised": self._promised, "reports": {}}, b""
        if number < self._promised:
            raise RefusedError(f"generation {number} is over, {self._promised} is promised")
        phases = {"halt": self._halt, "settle": self._settle, "fetch": self._fetch, "start": self._start}
        if op in phases:
            return await phases[op](message), b""
        match op:
            case "commit":
                await self._commit(message)
            case "damaged":
                self._damaged(message)
            case "flush":
                await self._flush(message)
            case "stop":
                await self._staff.stop()
            case "end":
                self._end(message["status"])
            case _:
                raise RefusedError(f"no keeper answers {op}")
        return {}, b""

    async def _halt(self, message: Message) -> Message:
        """End the generation before the message's on this machine: nothing trains when this returns."""
        number = self._promised = message["generation"]
        for values in self._desk.values.values():
            await values.close()
        self._desk.values = {number: Values()}
        await self._desk.release()
        seconds = self._options.silence_seconds
        self._reports |= await self._staff.halt(number, seconds)
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
        wanted = settlement.step > 0 and settlement.step != self._desk.complete
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
        self._desk.begin_generation(-1)
        await self._staff.settle(orders, self._options.silence_seconds + 30.0)
        self._reports = {}
        scales = {str(s.step): s.scale for s in self._snapshots.by_file.values()}
        return {"held": [held_row(item) for item in self._holdings()], "scales": scales}

    def _inventory(self) -> Message:
        """Say what this machine knows, to someone who asks and changes nothing."""
        generation = self.base.generation
        machines = [machine_data(machine) for machine in generation.machines]
        held = [held_row(item) for item in self._holdings()]
        plan = to_document(self.base.plan)
        seated = [machine_data(machine) for machine in self.base.seated]
        return {
            "generation": generation.number,
            "machines": machines,
            "seated": seated,
            "plan": plan,
            "held": held,
        }

    def _holdings(self) -> Iterator[Held]:
        yield from self._snapshots.holdings()
        if self._disk is not None:
            yield from self._disk.holdings()

    async def _fetch(self, message: Message) -> Message:
        """Have every piece that this machine needs: verify its own, read the others. Pieces that are damaged or do not
        come are returned with where they were."""
        own = [(stored, tier) for tier in (MEMORY, DISK) for stored in pieces_of(message["own"][str(tier)])]
        sound = await asyncio.gather(*(asyncio.to_thread(is_sound, self._folder(tier), s) for s, tier in own))
        me = self._options.machine.name
        damaged = [stored for (stored, _), good in zip(own, sound, strict=True) if not good]
        self._state = tuple(self._whole_path(stored, tier) for stored, tier in own)
        failed = [[rows_of([stored])[0], [me], "it is damaged"] for stored in damaged]
        file = f"{message['generation']:06d}-{FETCHED}.0.bin"
        wanted = [wanted_of(item, file) for item in message["wanted"]]
        if not wanted:
            return {"failed": failed}
        readers: dict[int, Reader] = {DISK: self._own_range, CLOUD: self._cloud_range}
        self._snapshots.forget(file)
        found: Fetched = await fetch(wanted, self._snapshots.folder, file, readers)
        self._snapshots.done(
            Snapshot(
                file=file,
                step=message["step"],
                generation=message["of_generation"],
                origin=FETCHED,
                pieces=found.pieces,
                scale=message["scale"],
            )
        )
        self._state += tuple(self._whole_path(stored, MEMORY) for stored in found.pieces)
        return {"failed": failed + [[rows_of([s])[0], list(machines), why] for s, machines, why in found.failed]}

    async def _start(self, message: Message) -> Message:
        """Start the workers of this machine in the generation, and return once all of them can train."""
        plan, me = from_document(message["plan"]), self._options.machine.name
        machines = tuple(machine_of(item) for item in message["machines"])
        where = [Seat(machine=name, slot=slot) for name, slot in message["seats"]]
        mine = {rank: seat.slot for rank, seat in enumerate(where) if seat.machine == me}
        self._ranks = {slot: rank for rank, slot in mine.items()}
        self._desk.begin_generation(len(mine))
        self._protected_by(plan, where, machines)
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
                "scale": message["scale"],
                "pieces": rows_of(self._state),
                "folder": str(self._snapshots.folder),
                "snapshot_every": self._options.snapshot_every,
                "operation_seconds": self._options.operation_seconds,
            }
            for rank, slot in mine.items()
        }
        ready = await self._staff.assign(orders, self._options.operation_seconds)
        if ready:
            generation = Generation(number=message["generation"], machines=machines)
            by_name = {machine.name: machine for machine in machines}
            self.base = Base(generation=generation, plan=plan, seated=tuple(by_name[n] for n in message["seated"]))
            workers = {str(slot): process for slot, process in sorted(self._staff.processes().items())}
            status = {"generation": generation.number, "machines": generation.names, "workers": workers}
            write_atomically(out / STATUS, json.dumps(status) + "\n")
        return {"ready": ready}

    def _whole_path(self, stored: StoredPiece, tier: int) -> StoredPiece:
        return _in(stored, str((self._folder(tier) / stored.file).resolve()))

    def _protected_by(self, plan: Any, where: Sequence[Seat], machines: Sequence[Machine]) -> None:
        """Find the pieces that no other machine holds, and the machine that shall have a copy of them: the next one, of
        another zone if there is one."""
        me = self._options.machine
        layout = layout_of(plan)
        by_machine: dict[str, set[Any]] = {}
        for place in layout.places:
            by_machine.setdefault(where[place.rank].machine, set()).update(held_pieces(layout, place, self._run.kinds))
        elsewhere = set().union(*(pieces for name, pieces in by_machine.items() if name != me.name))
        self._lonely = frozenset(by_machine.get(me.name, set()) - elsewhere)
        index = next((n for n, machine in enumerate(machines) if machine.name == me.name), 0)
        others = [*machines[index + 1 :], *machines[:index]]
        apart = [machine for machine in others if machine.zone != me.zone]
        self._partner = next(iter(apart or others), None)

    async def _protect(self, step: int) -> None:
        """Have a copy of what no other machine holds made on another one."""
        lonely = {part for piece in self._lonely for part in split(piece, 1 << 23)}
        pieces = [
            stored
            for snapshot in self._snapshots.by_file.values()
            if snapshot.step == step and not snapshot.origin
            for stored in snapshot.pieces
            if stored.piece in lonely
        ]
        if not pieces:
            return
        partner, me = self._partner, self._options.machine
        if partner is None:
            return  # a single machine: its disk and the object store protect it
        try:
            channel = await connect(partner.host, partner.port, refuse, timeout=5.0)
            try:
                scale = next((s.scale for s in self._snapshots.by_file.values() if s.step == step), None)
                await channel.call(
                    "copy",
                    timeout=COPY_SECONDS,
                    machine=machine_data(me),
                    rows=rows_of(pieces),
                    step=step,
                    scale=scale,
                    of_generation=self.base.generation.number,
                )
            finally:
                channel.close()
        except (LostError, RefusedError) as error:
            if self._promised > self.base.generation.number:
                return  # another step takes its place
            print(f"step {step} of {me.name} has no copy on {partner.name}: {error}", file=sys.stderr, flush=True)

    async def _copy(self, message: Message) -> Reply:
        """Have a copy of another machine's pieces in this one's memory. Raises RefusedError during a recovery, which
        counts on what this machine said that it holds."""
        if message["of_generation"] < self._promised:
            raise RefusedError(f"generation {message['of_generation']} is over")
        origin = machine_of(message["machine"])
        pieces, address = pieces_of(message["rows"]), (origin.host, origin.port)
        file = self._snapshots.begin(f"copy-of-{origin.name}", message["of_generation"])
        laid, offset = [], 0
        for stored in pieces:
            source = Source(
                machine=origin.name,
                address=address,
                tier=MEMORY,
                file=stored.file,
                offset=stored.offset,
                start=0,
                stop=stored.bytes,
            )
            laid.append(Wanted(stored=_in(stored, file, offset), sources=(source,)))
            offset += stored.bytes
        found = await fetch(laid, self._snapshots.folder, file, {})
        if found.failed:
            raise RefusedError(f"{len(found.failed)} pieces did not arrive: {found.failed[0][2]}")
        self._snapshots.done(
            Snapshot(
                file=file,
                step=message["step"],
                generation=message["of_generation"],
                origin=origin.name,
                pieces=found.pieces,
                scale=message["scale"],
            )
        )
        return {}, b""

    async def _commit(self, message: Message) -> None:
        """Know that all machines have a step; then bring it to the slower tiers, unless they are busy with another."""
        await self._snapshots.commit(message["step"], self.base.generation.number)
        if self._saving is None or self._saving.done():
            self._saved = message["step"]
            self._saving = asyncio.get_running_loop().create_task(self._save(message["step"]))

    async def _flush(self, message: Message) -> None:
        """Have the last step in all tiers, and with another machine."""
        await self._protect(message["step"])
        await self._commit(message)
        if self._saving is not None:
            await self._saving
        if self._saved != message["step"]:
            await self._save(message["step"])

    async def _save(self, step: int) -> None:
        """Write this machine's part of a step to disk, then to the object store. Where one fails, training goes on and
        the older steps stay."""
        held = [item for snapshot in list(self._snapshots.by_file.values()) for item in self._of(snapshot, step)]
        me = self._options.machine.name
        try:
            if self._disk is not None and held:
                await asyncio.to_thread(self._disk.write, step, self._snapshots.folder, held)
                self._disk.keep_newest()
        except (OSError, ValueError) as error:
            print(f"step {step} of {me} is not on disk: {error}", file=sys.stderr, flush=True)
        try:
            if self._cloud is not None:
                rows = await asyncio.to_thread(self._cloud.put_part, step, me, self._snapshots.folder, held)
                scale = next((s.scale for s in self._snapshots.by_file.values() if s.step == step), None)
                await self._desk.tell("uploaded", step=step, rows=rows_of(rows), scale=scale, generation=self._promised)
        except OSError as error:
            print(f"step {step} of {me} is not in the object store: {error}", file=sys.stderr, flush=True)

    def _of(self, snapshot: Snapshot, step: int) -> Iterator[Held]:
        """Yield what this machine itself wrote of a step."""
        if snapshot.step == step and not snapshot.origin:
            yield from (item for item in self._snapshots.holdings() if item.stored.file == snapshot.file)

    def _damaged(self, message: Message) -> None:
        """Forget pieces that turned out not to be what was written."""
        for stored in pieces_of(message["rows"]):
            self._snapshots.drop(stored)
            if self._disk is not None:
                self._disk.drop(stored)

    def _folder(self, tier: int) -> Path:
        return self._snapshots.folder if tier == MEMORY else Path(self._options.disk or "")

    async def _own_range(self, source: Source) -> bytes:
        message = {
            "tier": DISK,
            "file": source.file,
            "start": source.offset + source.start,
            "stop": source.offset + source.stop,
        }
        return await asyncio.to_thread(self._desk.piece, message)

    async def _cloud_range(self, source: Source) -> bytes:
        if self._cloud is None:
            raise RefusedError("this machine has no object store")
        start = source.offset + source.start
        return await asyncio.to_thread(self._cloud.read, source.file, start, source.offset + source.stop)


def _in(stored: StoredPiece, file: str, offset: int | None = None) -> StoredPiece:
    return replace(stored, file=file, offset=stored.offset if offset is None else offset)
