"""Events of Chrome traces ("Trace Event Format", Google), as they stream: a file is never held as a whole.

An event is decoded by the standard library's JSON decoder at the place where it begins, so that memory is that of a
block and of what the reader keeps. Plain and gzipped files, traces that are an object and those that are a bare array.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from shardwright.errors import SpecError, bad
from shardwright.progress import tell

BLOCK = 1 << 22  # characters read at a time
LONGEST_EVENT = 1 << 26  # characters of one event, or of what stands before the first
GZIP = b"\x1f\x8b"
EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
BETWEEN = re.compile(r"[\s,]*")


class ChromeTrace:
    """A trace file: `events` yields each event once; `about` has what stands around them, whole once all are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: dict[str, Any] = {}

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events in the order of the file, and tell progress. Raises SpecError for a file that is no trace,
        is cut off or damaged, with the place."""
        try:
            with self.path.open("rb") as raw:
                zipped = raw.read(2) == GZIP
                raw.seek(0)
                stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw) if zipped else raw)
                yield from self._streamed(stream, raw, max(self.path.stat().st_size, 1))
        except (OSError, EOFError, zlib.error) as error:
            raise bad(str(self.path), f"cannot be read: {error}", "check the file; it may be cut off") from None

    def _streamed(self, stream: IO[bytes], raw: IO[bytes], size: int) -> Iterator[dict[str, Any]]:
        blocks = _texts(stream, str(self.path))
        text = next(blocks, "").lstrip("\ufeff \t\r\n")
        place, passed = self._beginning(text), 0
        while place is None:
            more = next(blocks, "")
            if not more or len(text) > LONGEST_EVENT:
                raise bad(str(self.path), "has no traceEvents", "give a trace of PyTorch's profiler, or of `train`")
            text += more
            place = self._beginning(text)
        decode, number = json.JSONDecoder().raw_decode, 0
        while True:
            place = BETWEEN.match(text, place).end()  # type: ignore[union-attr]
            try:
                if place < len(text) and text[place] == "]":
                    break
                event, place = decode(text, place)
            except json.JSONDecodeError as error:
                more = next(blocks, "")
                if not more or len(text) - place > LONGEST_EVENT:
                    raise self._damaged(number, passed + error.pos, more) from None
                passed += place
                text, place = text[place:] + more, 0
                tell(raw.tell() / size)
                continue
            number += 1
            if not isinstance(event, dict):
                raise bad(str(self.path), f"event {number} is no object", "give a trace of PyTorch's profiler")
            yield event
        self._rest(text[place + 1 :] + "".join(blocks))

    def _beginning(self, text: str) -> int | None:
        """Return where the first event begins, and keep what stands before; None where it is not there yet."""
        if text.startswith("["):
            return 1
        match = EVENTS.search(text)
        if match is None:
            return None
        self._note(text[: match.start()].rstrip().rstrip(",") + "}")
        return match.end()

    def _rest(self, text: str) -> None:
        text = text.strip().lstrip(",").strip()
        if text not in ("", "}"):
            self._note("{" + text)

    def _note(self, text: str) -> None:
        """Keep keys beside the events, where they can be read: nothing hangs on them alone."""
        try:
            value = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            return
        if isinstance(value, dict):
            self.about |= value

    def _damaged(self, number: int, place: int, more: str) -> SpecError:
        what = "is not valid JSON" if more else "ends"
        hint = "record it anew" if more else "the file seems to be cut off: record it anew"
        return bad(str(self.path), f"{what} in event {number + 1}, character {place:,}", hint)


def _texts(stream: IO[bytes], name: str) -> Iterator[str]:
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while block := stream.read(BLOCK):
        if b"\0" in block[:1024]:
            raise bad(name, "is a binary file, not a Chrome trace", "give the trace as JSON")
        yield decoder.decode(block)
    yield decoder.decode(b"", final=True)
