"""Files of runs: what is read, and what is refused with one clear message."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.errors import SpecError
from shardwright.validation.runs import parse_runs, read_runs

HEADER = "model,gpu,n_gpus,seq_len,global_batch,measured_iter_time_s"
ROW = "llama-2-70b,H100-SXM,64,4096,128,9.5"


def test_a_small_file_is_read() -> None:
    (run,) = parse_runs(f"{HEADER}\n{ROW}\n", "runs.csv")
    assert (run.model, run.n_gpus, run.seconds) == ("llama-2-70b", 64.0, 9.5)
    assert run.row_id
    assert run.tp is None
    assert run.quality == ""


def test_seconds_come_from_tokens_where_only_those_are_published() -> None:
    header = HEADER.replace("measured_iter_time_s", "measured_tokens_per_s_per_gpu")
    (run,) = parse_runs(f"{header}\nllama-2-70b,H100-SXM,64,4096,128,1024\n", "runs.csv")
    assert run.seconds == pytest.approx(128 * 4096 / (1024 * 64))


def test_rows_without_a_name_get_one_that_depends_on_the_row_alone() -> None:
    first = parse_runs(f"{HEADER}\n{ROW}\n{ROW.replace('64', '32')}\n", "a.csv")
    second = parse_runs(f"{HEADER}\n{ROW.replace('64', '32')}\n{ROW}\n", "b.csv")
    assert [run.row_id for run in first] == [run.row_id for run in reversed(second)]
    assert first[0].row_id != first[1].row_id


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "lacks the columns"),
        (HEADER, "has no rows"),
        ("model,gpu\na,b\n", "n_gpus, seq_len, global_batch"),
        (HEADER.replace(",measured_iter_time_s", "") + "\n" + ROW.removesuffix(",9.5"), "no measured column"),
        (f"{HEADER}\n{ROW.replace('64', 'many')}", "line 2, n_gpus"),
        (f"{HEADER}\n{ROW}\n{ROW.replace('9.5', '-1')}", "line 3, measured_iter_time_s"),
        (f"{HEADER}\n{ROW.replace('9.5', 'inf')}", "out of range"),
        (f"{HEADER},cuda_graph\n{ROW},some", "line 2, cuda_graph: 'some' is unknown"),
        (f"{HEADER},network_gbps\n{ROW},fast", "line 2, network_gbps: 'fast' says no bandwidth"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(text, words) -> None:
    with pytest.raises(SpecError, match=words):
        parse_runs(text, "runs.csv")


@pytest.mark.parametrize(
    ("words", "gbps"),
    [
        ("1600", 1600.0),
        ("8x200Gb/s HDR IB per node", 1600.0),
        ("400 Gb/s RDMA per GPU", 3200.0),
        ("Storage: 2x ConnectX-7 IB NDR 400Gb/s; Compute: 8x ConnectX-7 IB NDR 400Gb/s", 3200.0),
        ("8x ConnectX-7 IB NDR 400Gb/s + 200Gb/s Ethernet NIC", 3200.0),
        ("1600 Gbps node-node interconnect (RoCE)", 1600.0),
        ("100 Gbit/s", 100.0),
    ],
)
def test_every_way_of_stating_a_bandwidth_is_that_of_a_machine(words, gbps) -> None:
    (run,) = parse_runs(f"{HEADER},network_gbps\n{ROW},{words}\n", "runs.csv")
    assert run.network_gbps == gbps


def test_switches_are_on_off_or_not_published() -> None:
    cells = [parse_runs(f"{HEADER},tp_overlap\n{ROW},{cell}\n", "x")[0].tp_overlap for cell in ("True", "FALSE", "")]
    assert cells == ["true", "false", ""]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00bad", b"\x00" * 100])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(SpecError):
        read_runs(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        read_runs(tmp_path / "nowhere.csv")
