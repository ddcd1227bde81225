"""Traces whose figures are written by hand: Kineto of one rank and several, `train`, Nsight Systems; and files that are
none."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import SpecError
from shardwright.traces.figures import RankFigures
from shardwright.traces.read import kind_of_file, read_records

MS = 1e-3


def event(kind: str, name: str, begin: float, length: float, **args: Any) -> dict[str, Any]:
    """Return an event of Kineto; times are milliseconds."""
    place = (
        {"pid": 0, "tid": args.get("stream", 7)}
        if kind == "kernel" or kind.startswith("gpu_")
        else {"pid": 9, "tid": 9}
    )
    return {"ph": "X", "cat": kind, "name": name, "ts": begin * 1e3, "dur": length * 1e3, "args": args, **place}


def step(begin: float, number: int) -> list[dict[str, Any]]:
    """A step of 100 ms: products 0-40, attention 40-50, an all-reduce 30-60 of which 20 ms run beside them, 10 ms of
    an exchange, a copy 75-80, nothing until 85 as the loader is waited for, and an update 90-98."""
    return [
        event("user_annotation", f"ProfilerStep#{number}", begin, 100.0),
        event("kernel", "nvjet_tst_128x256_64x4", begin, 40.0, stream=7, correlation=1),
        event("kernel", "flash_fwd_kernel<cutlass::bf16>", begin + 40, 10.0, stream=7, correlation=2),
        event(
            "kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", begin + 30, 30.0, stream=20, correlation=3,
            **{"Collective name": "allreduce", "Group size": 8, "Process Group Description": "mesh_tp"},
        ),
        event(
            "kernel", "ncclDevKernel_SendRecv", begin + 62, 10.0, stream=22, correlation=4,
            **{"Collective name": "all_to_allv", "Group size": 4, "Process Group Description": "mesh_ep"},
        ),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", begin + 75, 5.0, stream=7, correlation=5),
        event("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", begin + 78, 7.0),
        event("user_annotation", "Optimizer.step#AdamW.step", begin + 86, 4.0),
        event("cuda_runtime", "cudaLaunchKernel", begin + 87, 0.1, correlation=100 + number),
        event("kernel", "multi_tensor_apply_kernel<AdamFunctor>", begin + 90, 8.0, stream=7, correlation=100 + number),
        event("cuda_runtime", "cudaMalloc", begin + 81, 1.0, correlation=6),
        event("cpu_op", "aten::mm", begin, 1.0),
    ]  # fmt: skip


def document(rank: int | None = 3) -> dict[str, Any]:
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}]}
    head |= {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 8}}
    return {**head, "traceEvents": [*step(1000.0, 5), *step(1100.0, 6)], "traceName": "x", "displayTimeUnit": "ms"}


def write(path: Path, content: Any) -> Path:
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def check(rank: RankFigures) -> None:
    """The figures of `step`."""
    assert (rank.steps, rank.counted, rank.on_gpu) == (2, True, True)
    calls = {call.kind: call for call in rank.collectives}
    assert rank.step_seconds == pytest.approx(100 * MS)
    assert rank.compute_seconds == pytest.approx(58 * MS)
    assert rank.optimizer_seconds == pytest.approx(8 * MS)
    assert calls["all_reduce"].hidden_seconds == pytest.approx(20 * MS)
    assert calls["all_reduce"].exposed_seconds == pytest.approx(10 * MS)
    assert calls["send_recv"].exposed_seconds == pytest.approx(10 * MS)
    assert rank.copy_seconds == pytest.approx(5 * MS)
    assert rank.data_seconds == pytest.approx(5 * MS)  # 80 to 85: the copy runs before
    assert rank.idle_seconds == pytest.approx(12 * MS)  # 60-62, 72-75, 85-90, 98-100
    parts = rank.compute_seconds + rank.exposed_seconds + rank.copy_seconds + rank.data_seconds + rank.idle_seconds
    assert parts == pytest.approx(rank.step_seconds)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_of_kineto(tmp_path: Path, name: str) -> None:
    (rank,) = read_records([write(tmp_path / name, document())]).ranks
    check(rank)
    assert rank.rank == 3 and rank.launches == 5
    assert {call.kind: (call.group, call.ranks) for call in rank.collectives} == {
        "all_reduce": ("mesh_tp", 8),
        "send_recv": ("mesh_ep", 4),
    }


def test_a_trace_is_read_in_blocks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "trace.json", document())
    for size in (7, 97, 1000):
        monkeypatch.setattr("shardwright.traces.kineto.BLOCK", size)
        check(read_records([path]).ranks[0])


def test_a_bare_array_of_events_is_a_trace(tmp_path: Path) -> None:
    (rank,) = read_records([write(tmp_path / "rank12.json", document()["traceEvents"])]).ranks
    check(rank)
    assert rank.rank == 12


def test_traces_of_several_ranks(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{number}.json", document(rank)) for number, rank in enumerate((8, 0))]
    assert [rank.rank for rank in read_records(paths).ranks] == [0, 8]
    with pytest.raises(SpecError, match="both of rank 8"):
        read_records([paths[0], paths[0]])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur"', "ends in event 1"),
        ('{"traceEvents": [{"ph": "X"}, nonsense]}', "event 2"),
        ('{"traceEvents": []}', "no kernel and no operator"),
        ('{"traceEvents": [3]}', "event 1 is no object"),
    ],
)
def test_a_damaged_trace_is_refused_by_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=words):
        read_records([path])


def test_a_gzipped_trace_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json.gz", document())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SpecError, match="cut off"):
        read_records([path])


def nsight(path: Path) -> Path:
    """The same two steps as an export of Nsight Systems, but for the groups of collectives."""
    names = ["nvjet_tst_128x256", "flash_fwd", "ncclDevKernel_AllReduce", "ncclDevKernel_SendRecv", "adam_kernel"]
    names += ["cudaMalloc_v3020"]
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
        for table in ("KERNEL", "RUNTIME", "MEMCPY"):
            more = {"KERNEL": "demangledName", "RUNTIME": "nameId", "MEMCPY": "copyKind"}[table]
            base.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_{table} (start INT, end INT, deviceId INT, {more} INT)")
        base.execute("CREATE TABLE NVTX_EVENTS (start INT, end INT, text TEXT, textId INT)")
        for number, begin in enumerate((1000, 1100)):
            spans = [(0, 40, 0), (40, 50, 1), (30, 60, 2), (62, 72, 3), (90, 98, 4)]
            rows = [((begin + a) * 10**6, (begin + b) * 10**6, 0, name) for a, b, name in spans]
            base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?)", rows)
            copy = ((begin + 75) * 10**6, (begin + 80) * 10**6, 0, 1)
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?)", copy)
            call = ((begin + 86) * 10**6, (begin + 87) * 10**6, 0, 5)
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)", call)
            for a, b, text in ((0, 100, f"step {number}"), (78, 85, "dataloader")):
                base.execute(
                    "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, NULL)", ((begin + a) * 10**6, (begin + b) * 10**6, text)
                )
    base.close()
    return path


def test_an_export_of_nsight_systems(tmp_path: Path) -> None:
    path = nsight(tmp_path / "rank4.sqlite")
    assert kind_of_file(path) == "nsight"
    (rank,) = read_records([path]).ranks
    check(rank)
    assert rank.rank == 4 and rank.allocations == 1 and rank.allocation_seconds == pytest.approx(1 * MS)


def test_a_database_without_kernels_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.sqlite") as base:
        base.execute("CREATE TABLE t (x INT)")
    base.close()
    with pytest.raises(SpecError, match="no kernels"):
        read_records([tmp_path / "a.sqlite"])


def test_a_trace_of_train_has_its_ranks(tmp_path: Path) -> None:
    recorded = Path(__file__).parents[1] / "diagnosis" / "faults" / "square" / "trace.json.gz"
    ranks = read_records([recorded]).ranks
    assert [rank.rank for rank in ranks] == [0, 1, 2, 3] and not any(rank.on_gpu for rank in ranks)
    for rank in ranks:
        parts = rank.compute_seconds + rank.exposed_seconds + rank.copy_seconds + rank.data_seconds + rank.idle_seconds
        assert parts == pytest.approx(rank.step_seconds)
        assert 1.2 < rank.compute_seconds < 1.35  # 8 micro-batches of 4 layers and an end


def test_a_trace_of_an_hour_of_other_work_is_other(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("iteration 1/ 100 | elapsed time per iteration (ms): 12\n")
    assert kind_of_file(path) == "other" and read_records([path]).others == (path,)


def test_real_traces_of_pytorch_of_two_ranks_on_gloo() -> None:
    """`record_ddp.py`: eight samples of 5 ms a step, one sum of gradients."""
    here = Path(__file__).parent
    ranks = read_records([here / "ddp1.json.gz", here / "ddp0.json.gz"]).ranks
    assert [(rank.rank, rank.steps, rank.counted, rank.on_gpu) for rank in ranks] == [
        (0, 2, True, False),
        (1, 2, True, False),
    ]
    for rank in ranks:
        assert rank.data_seconds > 8 * 5 * MS
        assert [(call.kind, call.calls) for call in rank.collectives] == [("all_reduce", 1.0)]
        assert 0.0 < rank.optimizer_seconds < rank.compute_seconds < rank.step_seconds
        parts = rank.compute_seconds + rank.exposed_seconds + rank.copy_seconds + rank.data_seconds + rank.idle_seconds
        assert parts == pytest.approx(rank.step_seconds)
