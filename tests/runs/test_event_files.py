"""Event files of TensorBoard, written here byte by byte after the format of their records."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from shardwright import SpecError, good_state, read_run
from shardwright.runs.event_files import masked_crc


def varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data += bytes([value & 127 | 128])
        value >>= 7
    return data + bytes([value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(clock: float, step: int, **values: float) -> bytes:
    summary = b"".join(
        field(1, field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)) for tag, value in values.items()
    )
    return b"\x09" + struct.pack("<d", clock) + b"\x10" + varint(step) + field(5, summary)


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def file_of(folder: Path, *events: bytes) -> Path:
    path = folder / "events.out.tfevents.1700000000.host.1.0"
    version = b"\x09" + struct.pack("<d", 1.0) + field(3, b"brain.Event:2")
    path.write_bytes(b"".join(map(record, (version, *events))))
    return path


def test_the_checksum_is_that_of_records() -> None:
    """CRC-32C of "123456789" is e3069283 (RFC 3720, B.4 has others of its kind), masked as TensorFlow does."""
    crc = 0xE3069283
    assert masked_crc(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_iteration_times_of_megatron(tmp_path: Path) -> None:
    times = [9.0, 2.0, 2.5, 2.0, 2.0, 2.0]
    events = [
        event(i * 10.0, i, **{"iteration-time": seconds, "lm loss": 8.0 - i, "throughput": 410.0})
        for i, seconds in enumerate(times, 1)
    ]
    run = read_run(file_of(tmp_path, *events))
    assert run.trainer == "megatron" and list(run.steps.seconds) == times and list(run.steps.loss) == [7, 6, 5, 4, 3, 2]
    assert good_state(run).seconds == 2.0 and run.steps.gpu_tflops[0] == 410.0


def test_a_folder_of_files_is_one_run(tmp_path: Path) -> None:
    for part, steps in enumerate(((1, 2, 3), (4, 5, 6))):
        (tmp_path / str(part)).mkdir()
        file_of(tmp_path / str(part), *(event(i * 1.0, i, **{"train_step_timing in s": 4.5}) for i in steps))
    run = read_run(tmp_path)
    assert run.trainer == "nemo" and list(run.steps.step) == [1, 2, 3, 4, 5, 6]


def test_without_a_time_the_clock_of_records_counts(tmp_path: Path) -> None:
    run = read_run(file_of(tmp_path, *(event(1e9 + i * 1.5, i * 10, **{"train/loss": 2.0}) for i in range(1, 9))))
    assert run.trainer == "transformers" and good_state(run).seconds == pytest.approx(0.15)
    assert run.notes == ("seconds of a step are taken from the time between lines",)


def test_steps_of_deepspeed_count_samples(tmp_path: Path) -> None:
    path = file_of(tmp_path, *(event(1e9 + i * 3.0, i * 256, **{"Train/Samples/train_loss": 2.0}) for i in range(1, 9)))
    assert good_state(read_run(path, global_batch=256)).seconds == pytest.approx(3.0)


def test_a_spoiled_record_is_refused_by_number(tmp_path: Path) -> None:
    path = file_of(tmp_path, *(event(1.0, i, **{"iteration-time": 2.0}) for i in range(4)))
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)
    with pytest.raises(SpecError, match="record 5: its checksum is wrong"):
        read_run(path)
    path.write_bytes(b"not an event file at all, but a text of some length")
    with pytest.raises(SpecError, match="record 1: is no record of an event file"):
        read_run(path)
    path.write_bytes(record(b"\x0a\xff"))
    with pytest.raises(SpecError, match="record 1: is no event"):
        read_run(path)


def test_a_file_that_is_written_now_reads_up_to_its_end(tmp_path: Path) -> None:
    path = file_of(tmp_path, *(event(1.0, i, **{"iteration-time": 2.0}) for i in range(1, 6)))
    path.write_bytes(path.read_bytes()[:-9])
    assert len(read_run(path).steps) == 4


def test_unknown_tags_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="those there: my/metric"):
        read_run(file_of(tmp_path, event(1.0, 1, **{"my/metric": 2.0})))
