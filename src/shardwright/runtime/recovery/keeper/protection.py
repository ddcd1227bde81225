"""How a machine's part of a step is protected: a copy on another machine of what no other holds, its disk, the object
store. Where one fails, training goes on, and the log says what is not protected. No PyTorch."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial

from shardwright.errors import SpecError
from shardwright.plans.plan import Plan
from shardwright.recovery.quorum import Machine, RankSeat, partner_of
from shardwright.recovery.transfer import MEMORY
from shardwright.runtime.job.course import RunIdentity
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.recovery.keeper.worker_requests import WorkerRequests
from shardwright.runtime.recovery.run import GenerationPromise, KeeperOptions
from shardwright.runtime.recovery.state.cloud import Cloud, part_name
from shardwright.runtime.recovery.state.inventory import HeldPiece, pieces_of, rows_of
from shardwright.runtime.recovery.state.snapshots import DiskTier, Snapshot, Snapshots
from shardwright.runtime.recovery.state.transfers import PieceSource, Wanted, fetch, machine_pieces, shares_of
from shardwright.runtime.recovery.wire import LostError, Message, Pulse, RefusedError, Reply, answered, connect, refuse
from shardwright.runtime.state.pieces import StatePiece, StoredPiece, split

COPY_SECONDS = 60.0


class Protection:
    """Protects what the keeper's own workers wrote."""

    def __init__(
        self,
        options: KeeperOptions,
        run: RunIdentity,
        snapshots: Snapshots,
        from_workers: WorkerRequests,
        promise: GenerationPromise,
    ) -> None:
        self._me, self._run, self._snapshots = options.machine, run, snapshots
        self._from_workers, self._promise = from_workers, promise
        self.disk = DiskTier(options.disk, options.machine.name, run.name) if options.disk else None
        self.cloud = Cloud(options.upload) if options.upload else None
        self._secret = options.secret
        self._every, self._keep = options.settings.checkpoint_every, options.settings.keep
        self._saving: asyncio.Task[None] | None = None
        self._due = self._saved = (-1, 0, False)
        self._late = False
        self._partner: Machine | None = None
        self._lonely: frozenset[StatePiece] = frozenset()
        self._share: frozenset[StatePiece] = frozenset()
        from_workers.protect = self.copied

    def begin_generation(self, plan: Plan, where: Sequence[RankSeat], machines: Sequence[Machine]) -> None:
        """Find the pieces that no other machine holds, and the machine that shall have a copy of them: the next one, of
        another zone if there is one; and those that this machine shall upload."""
        me = self._me
        by_machine = machine_pieces(layout_of(plan), where, self._run.kinds)
        elsewhere = set().union(*(pieces for name, pieces in by_machine.items() if name != me.name))
        self._lonely = frozenset(by_machine.get(me.name, set()) - elsewhere)
        self._share = shares_of(by_machine).get(me.name, frozenset())
        index = next((n for n, machine in enumerate(machines) if machine.name == me.name), 0)
        self._partner = partner_of(machines, index)

    async def copied(self, step: int) -> None:
        """Have a copy of what no other machine holds made on another one."""
        lonely = _parts(self._lonely)
        pieces = [
            stored
            for snapshot in self._snapshots.by_file.values()
            if snapshot.step == step and not snapshot.origin
            for stored in snapshot.pieces
            if stored.piece in lonely
        ]
        if not pieces:
            return
        partner, me = self._partner, self._me
        if partner is None:
            return  # a single machine: its disk and the object store protect it
        try:
            channel = await connect(*partner.address, refuse, secret=self._secret, timeout=5.0)
            try:
                await channel.call(
                    "copy",
                    timeout=COPY_SECONDS,
                    machine=asdict(me),
                    rows=rows_of(pieces),
                    step=step,
                    scale=next((s.scale for s in self._snapshots.by_file.values() if s.step == step), None),
                    of_generation=self._promise.base.generation.number,
                )
            finally:
                channel.close()
        except (LostError, RefusedError) as error:
            if self._promise.newest > self._promise.base.generation.number:
                return  # another step takes its place
            print(f"step {step} of {me.name} has no copy on {partner.name}: {error}", file=sys.stderr, flush=True)

    async def copy(self, message: Message) -> Reply:
        """Have a copy of another machine's pieces in this one's memory. Raises RefusedError during a recovery, which
        counts on what this machine said that it holds."""
        if message["of_generation"] < self._promise.newest:
            raise RefusedError(f"generation {message['of_generation']} is over")
        origin = Machine(**message["machine"])
        pieces, address = pieces_of(message["rows"]), origin.address
        file = self._snapshots.begin(f"copy-of-{origin.name}", message["of_generation"])
        laid, offset = [], 0
        for stored in pieces:
            source = PieceSource(
                machine=origin.name,
                address=address,
                tier=MEMORY,
                file=stored.file,
                offset=stored.offset,
                start=0,
                stop=stored.bytes,
            )
            laid.append(Wanted(stored=replace(stored, file=file, offset=offset), sources=(source,)))
            offset += stored.bytes
        fetched = await fetch(laid, self._snapshots.folder, file, {}, self._secret)
        if fetched.failed:
            raise RefusedError(f"{len(fetched.failed)} pieces did not arrive: {fetched.failed[0][2]}")
        self._snapshots.done(
            Snapshot(
                file=file,
                step=message["step"],
                generation=message["of_generation"],
                origin=origin.name,
                pieces=fetched.pieces,
                scale=message["scale"],
            )
        )
        return {}, b""

    async def commit(self, message: Message, *, whole: bool = False) -> None:
        """Know that all machines have a step; then bring it to the slower tiers, as soon as they are done with another:
        steps that come meanwhile are passed over but for the newest, and those in which no checkpoint is due stay in
        memory. The `whole` of what this machine wrote is uploaded where others that hold it alike may be lost."""
        generation = self._promise.base.generation.number
        await self._snapshots.commit(message["step"], generation)
        if self._every and message["step"] % self._every and not whole:
            return
        self._due = (message["step"], generation, whole)
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._save_due())
            self._late = False
        elif not self._late:
            self._late = True
            print(
                f"step {message['step']} of {self._me.name} is in memory alone: step {self._saved[0]} is still on its "
                f"way",
                file=sys.stderr,
                flush=True,
            )

    async def flush(self, message: Message) -> None:
        """Have the last step in all tiers, and with another machine."""
        await self.copied(message["step"])
        await self.commit(message, whole=True)
        if self._saving is not None:
            await self._saving

    async def _save_due(self) -> None:
        while self._saved != self._due:
            self._saved = self._due
            await self._save(self._saved[0], whole=self._saved[2])

    async def _save(self, step: int, *, whole: bool) -> None:
        """Write this machine's part of a step to disk, then to the object store. Where one fails, training goes on and
        the older steps stay."""
        mine = [
            snapshot for snapshot in self._snapshots.by_file.values() if snapshot.step == step and not snapshot.origin
        ]
        if not mine:
            return  # none of the plan's ranks is on this machine
        generation = max(snapshot.generation for snapshot in mine)
        files = {snapshot.file for snapshot in mine if snapshot.generation == generation}
        held = [item for item in self._snapshots.holdings() if item.stored.file in files]
        try:
            if self.disk is not None and held:
                await asyncio.to_thread(self.disk.write, step, self._snapshots.folder, held)
                self.disk.keep_newest(self._keep)
        except (OSError, ValueError) as error:
            print(f"step {step} of {self._me.name} is not on disk: {error}", file=sys.stderr, flush=True)
        try:
            if self.cloud is not None:
                rows = await self._uploaded(self.cloud, step, generation, held, whole=whole)
                scale = next(snapshot.scale for snapshot in mine)
                fields = {"of_generation": generation, "rows": rows_of(rows), "scale": scale}
                await self._from_workers.tell("uploaded", step=step, generation=self._promise.newest, **fields)
        except (OSError, SpecError) as error:
            print(f"step {step} of {self._me.name} is not in the object store: {error}", file=sys.stderr, flush=True)

    async def _uploaded(
        self, cloud: Cloud, step: int, generation: int, held: Sequence[HeldPiece], *, whole: bool
    ) -> tuple[StoredPiece, ...]:
        """Upload this machine's share of a step, or the `whole` of what it holds: from its disk, where it stays as long
        as that takes, or else from memory, where the next snapshots but one are written over it."""
        folder, there = self._snapshots.folder, held
        if self.disk is not None and (on_disk := self.disk.of_step(step)):
            folder, there = self.disk.folder, on_disk
        share, name, pulse = _parts(self._share), part_name(step, generation, self._me.name, whole=whole), Pulse()
        chosen = [item for item in there if whole or item.stored.piece in share]
        return await answered(cloud.what, partial(cloud.put_part, name, folder, chosen, pulse), pulse=pulse)

    def expendable(self) -> bool:
        """Return whether this machine's part of the newest step is not in its memory alone."""
        newest = self._snapshots.committed
        if all(item.step != newest for item in self._snapshots.holdings()):
            return True  # it is none of the newest step's machines
        return self.disk is not None and bool(self.disk.of_step(newest))


def _parts(pieces: Iterable[StatePiece]) -> set[StatePiece]:
    """Return pieces as they are cut in snapshots."""
    return {part for piece in pieces for part in split(piece, 1 << 23)}
