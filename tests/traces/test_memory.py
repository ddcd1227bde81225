"""Snapshots of memory, which are pickles that are not run, and messages of full memory."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import SpecError
from shardwright.traces.memory import out_of_memory, plain_pickle, read_snapshot

GIB, MIB = 1024**3, 1024**2


def snapshot() -> dict[str, Any]:
    frames = [
        {"filename": "/venv/lib/python3.12/site-packages/torch/nn/functional.py", "line": 1, "name": "linear"},
        {"filename": "/home/me/train.py", "line": 12, "name": "forward"},
    ]
    blocks = [
        {"size": 3 * GIB, "state": "active_allocated", "frames": frames},
        {"size": GIB, "state": "inactive"},
        {"size": 4 * GIB, "state": "active_allocated", "frames": []},
    ]
    history = [
        {"action": "alloc", "size": 3 * GIB}, {"action": "alloc", "size": 2 * GIB},
        {"action": "free_completed", "size": 2 * GIB}, {"action": "segment_free", "size": GIB},
        {"action": "segment_alloc", "size": 5 * GIB}, {"action": "alloc", "size": GIB},
        {"action": "free_completed", "size": GIB}, {"action": "oom", "size": GIB},
    ]  # fmt: skip
    return {"segments": [{"device": 0, "total_size": 8 * GIB, "blocks": blocks}], "device_traces": [history]}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_snapshot_is_read_without_unpickling(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(), protocol=protocol))
    (memory,) = read_snapshot(path)
    assert (memory.reserved_bytes, memory.allocated_bytes) == (8 * GIB, 7 * GIB)
    assert (memory.peak_bytes, memory.retries, memory.out_of_memory) == (9 * GIB, 1, 1)
    assert memory.largest[0].place == "forward (train.py:12)" and memory.largest[0].bytes == 3 * GIB


def test_plain_values_come_back_as_they_were() -> None:
    value: list[Any] = [
        1,
        -5,
        2**70,
        1.5,
        True,
        None,
        "ä",
        b"x",
        (),
        (1, 2, 3, 4),
        {"a": [{"b": {}}]},
        {1, 2},
        ["s"] * 3,
    ]
    for protocol in range(6):
        plain = value if protocol > 3 else value[:7]  # older ones make bytes and sets by calls
        assert plain_pickle(pickle.dumps(plain, protocol=protocol), "x") == plain


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/shardwright-was-here",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, protocol: int) -> None:
    with pytest.raises(SpecError, match="asks to run code"):
        plain_pickle(pickle.dumps({"segments": [Evil()]}, protocol=protocol), "x")
    assert not Path("/tmp/shardwright-was-here").exists()


def test_what_is_cut_off_or_another_thing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no whole pickle"):
        plain_pickle(pickle.dumps(snapshot())[:-30], "x")
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps({"weights": [1.0]}))
    with pytest.raises(SpecError, match="no snapshot"):
        read_snapshot(path)


NEW = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of "
    "79.11 GiB of which 512.00 MiB is free. Process 7 has 3.00 GiB memory in use. Including non-PyTorch memory, this "
    "process has 75.61 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 4.25 GiB is "
    "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total capacity; 14.50 GiB already "
    "allocated; 9.44 MiB free; 14.60 GiB reserved in total by PyTorch)"
)


def test_a_message_of_today() -> None:
    message = out_of_memory(f"step 7\n{NEW}\nmore")
    assert message is not None
    assert (message.rank, message.device) == (3, 3)
    assert message.wanted_bytes == 1.5 * GIB and message.capacity_bytes == pytest.approx(79.11 * GIB)
    assert message.allocated_bytes == 70 * GIB and message.unused_bytes == pytest.approx(4.25 * GIB)
    assert message.free_bytes == 512 * MIB
    assert message.others_bytes == pytest.approx(3.0 * GIB)


def test_a_message_of_older_versions() -> None:
    message = out_of_memory(OLD)
    assert message is not None
    assert (message.device, message.rank) == (0, None)
    assert message.wanted_bytes == 20 * MIB and message.capacity_bytes == pytest.approx(15.78 * GIB)
    assert message.allocated_bytes == pytest.approx(14.5 * GIB) and message.free_bytes == pytest.approx(9.44 * MIB)
    assert message.unused_bytes == pytest.approx(0.1 * GIB)


def test_other_texts_say_nothing() -> None:
    assert out_of_memory("ValueError: out of range") is None
