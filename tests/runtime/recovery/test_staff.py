"""The workers of a machine, between two generations. They are played."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from shardwright.runtime.job.settings import Settings
from shardwright.runtime.recovery.channel import Channel, Message, Reply
from shardwright.runtime.recovery.staff import Hand, Staff


class Answering:
    """A connection to a worker that has one answer for all orders."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer

    async def call(self, _op: str, **_: object) -> Reply:
        return self.answer, b""


def staff_of(*answers: Message | None) -> Staff:
    """Return workers, the first of which has GPU 0; None for one that has not come yet."""
    staff = Staff(host="h", port=1, settings=cast(Settings, None), on_gone=lambda *_: None)
    for token, answer in enumerate(answers):
        channel: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        if answer is not None:
            channel.set_result(cast(Channel, Answering(**answer)))
        process = SimpleNamespace(pid=None)
        staff.hands[token] = Hand(token=token, process=process, channel=channel, slot=None if token else 0)
    return staff


def test_a_worker_that_has_only_just_been_hired_holds_up_no_halt() -> None:
    """Its machine came, and another one was lost before it could begin."""

    async def play() -> None:
        staff = staff_of(None)
        assert await staff.halt(2, 5.0) == {}
        assert staff.hands[0].slot is None, "it is free for the next generation"

    asyncio.run(play())


def test_a_worker_that_is_stuck_leaves_its_gpu_to_a_spare_one() -> None:
    async def play() -> None:
        staff = staff_of({"stuck": True}, {"ready": True})
        assert await staff.assign({0: {"op": "assign"}}, 5.0)
        assert [hand.token for hand in staff.hands.values() if hand.slot == 0] == [1]

    asyncio.run(play())
