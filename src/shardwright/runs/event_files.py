"""Scalars of TensorBoard event files, read without TensorBoard and without unpickling anything.

A file is records: length (8 bytes), its masked CRC-32C (4), the record, its masked CRC-32C (4), all little-endian
(tensorflow/tensorflow: core/lib/io/record_writer.h). A record is an `Event` of protocol buffers: wall_time (1, double),
step (2, varint), summary (5), whose values (1) have a tag (1) and a simple_value (2, float) or a tensor (8).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from shardwright.errors import bad
from shardwright.progress import tell
from shardwright.runs.run import NAN, MeasuredRun, Rows, RunSetting, steps_of

# Tags that trainers write, what they are, and one of their unit in ours. TensorBoard of a Trainer, DeepSpeed or a
# plain `add_scalar` says no time: the clock of its records does.
TAGS: dict[str, tuple[str, str, float]] = {
    "iteration-time": ("megatron", "seconds", 1.0),
    "throughput": ("megatron", "gpu_tflops", 1.0),
    "lm loss": ("megatron", "loss", 1.0),
    "throughput/tflops/device": ("megatron-bridge", "gpu_tflops", 1.0),
    "train_step_timing in s": ("nemo", "seconds", 1.0),
    "reduced_train_loss": ("nemo", "loss", 1.0),
    "time_metrics/end_to_end(s)": ("torchtitan", "seconds", 1.0),
    "throughput(tps)": ("torchtitan", "gpu_tokens_per_second", 1.0),
    "tflops": ("torchtitan", "gpu_tflops", 1.0),
    "memory/max_reserved(GiB)": ("torchtitan", "memory_bytes", 2.0**30),
    "loss_metrics/global_avg_loss": ("torchtitan", "loss", 1.0),
    "elapsed_time_per_iteration_ms": ("nanotron", "seconds", 1e-3),
    "tokens_per_sec": ("nanotron", "tokens_per_second", 1.0),
    "lm_loss": ("nanotron", "loss", 1.0),
    "train/loss": ("transformers", "loss", 1.0),
    "train/tokens/train_per_sec_per_gpu": ("axolotl", "gpu_tokens_per_second", 1.0),
    "train/tokens_per_second_per_gpu": ("axolotl", "gpu_tokens_per_second", 1.0),
    "Train/Samples/train_loss": ("deepspeed", "loss", 1.0),
}
IN_SAMPLES = {"Train/Samples/train_loss"}  # tags whose step counts samples
LONGEST = 1 << 16  # bytes of a record with scalars alone; longer ones hold pictures or histograms
LARGEST = 1 << 31
POLYNOMIAL = 0x82F63B78  # of CRC-32C, reflected


def read_event_file(path: Path, given: RunSetting) -> MeasuredRun:
    """Return the run of an event file, or of all in a folder. Raises SpecError for a file that is none, naming the
    record whose checksum is wrong, and for one without a tag of a known trainer."""
    files = sorted(path.rglob("*tfevents*")) if path.is_dir() else [path]
    columns: dict[str, tuple[array[int], array[float], array[float], array[int]]] = {}
    unknown: dict[str, None] = {}
    for file in files:
        for record, clock, step, tag, value in scalars(file):
            if tag not in TAGS:
                unknown.setdefault(tag)
                continue
            steps, values, clocks, places = columns.setdefault(tag, (array("q"), array("d"), array("d"), array("q")))
            steps.append(step)
            values.append(value)
            clocks.append(clock)
            places.append(record)
    if not columns:
        seen = ", ".join(list(unknown)[:8]) or "none"
        raise bad(str(path), f"no scalar is one that a known trainer writes; those there: {seen}", "give its log")
    timed = next((tag for tag in columns if TAGS[tag][1] == "seconds"), None)
    main = timed or max(columns, key=lambda tag: len(columns[tag][0]))
    steps_main, values_main, clocks, places = columns[main]
    batch = (given.global_batch or 1) if main in IN_SAMPLES else 1
    others = {tag: dict(zip(columns[tag][0], columns[tag][1], strict=True)) for tag in columns if tag != main}
    rows = Rows()
    for step, value, clock, place in sorted(zip(steps_main, values_main, clocks, places, strict=True)):
        figures = {TAGS[main][1]: value * TAGS[main][2], "clock": clock}
        figures |= {TAGS[tag][1]: at.get(step, NAN) * TAGS[tag][2] for tag, at in others.items()}
        rows.add(step // batch, place, figures)
    measured, restarts, notes = steps_of(rows, given)
    return MeasuredRun(
        name=str(path), trainer=TAGS[main][0], steps=measured, setting=given, events=restarts, notes=notes
    )


def scalars(path: Path) -> Iterator[tuple[int, float, int, str, float]]:
    """Yield (record, wall time, step, tag, value) of every scalar of an event file, one record in memory at a time."""
    size, record = max(path.stat().st_size, 1), 0
    with path.open("rb") as file:
        while header := file.read(12):
            record += 1
            place = f"{path}, record {record}"
            if len(header) < 12:
                return  # cut off: the trainer was killed, or writes now
            length, check = struct.unpack("<QI", header)
            if masked_crc(header[:8]) != check or length > LARGEST:
                raise bad(place, "is no record of an event file: the checksum of its length is wrong", "copy it again")
            if length > LONGEST:
                file.seek(length + 4, 1)
                continue
            data, tail = file.read(length), file.read(4)
            if len(tail) < 4:
                return
            if masked_crc(data) != struct.unpack("<I", tail)[0]:
                raise bad(place, "its checksum is wrong", "copy the file again")
            if record % 1000 == 0:
                tell(file.tell() / size)
            try:
                yield from ((record, *entry) for entry in _event(data))
            except (ValueError, IndexError, struct.error, UnicodeDecodeError):
                raise bad(place, "is no event", "is this an event file of TensorBoard?") from None


def _event(data: bytes) -> Iterator[tuple[float, int, str, float]]:
    clock, step, summaries = 0.0, 0, []
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            (clock,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, bytes) and (entry := _value(value)) is not None:
                yield clock, step, *entry


def _value(data: bytes) -> tuple[str, float] | None:
    """Return tag and number of one value of a summary, None where it is no scalar."""
    tag, scalar = "", None
    for number, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            tag = value.decode()
        elif number == 2:
            (scalar,) = struct.unpack("<f", value)
        elif number == 8:
            scalar = _tensor(value)
    return None if scalar is None else (tag, float(scalar))


def _tensor(data: bytes) -> float | None:
    """Return the number that a tensor of one float (5) or double (6), or its bytes (4), holds."""
    for number, value in _fields(data):
        if number in (4, 5, 6) and isinstance(value, bytes) and len(value) in (4, 8):
            return float(struct.unpack("<f" if len(value) == 4 else "<d", value)[0])
    return None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of the fields of a message: varints as numbers, all others as bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == 2:
            length, place = _varint(data, place)
        else:
            length = {1: 8, 5: 4}.get(kind, len(data) + 1)
        if place + length > len(data):
            raise ValueError("a field goes beyond its message")
        yield key >> 3, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of some bytes, rotated and shifted as records have it."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
