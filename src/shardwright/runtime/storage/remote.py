"""Files behind a URL that fsspec understands (https://, s3://, gs://, …), of which only those bytes are read that are
needed. What fails is tried again for some seconds, but for what is missing or not allowed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import bad
from shardwright.records import record

RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0)
T = TypeVar("T")


@record
class RemoteTokens:
    """The `count` tokens of a file. Slices are read as they are asked for; steps are not."""

    url: str
    count: int
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, part: slice) -> NDArray[Any]:
        start, stop, _ = part.indices(self.count)
        return self.read([(start, stop)])[0]

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)

    def read(self, parts: Sequence[tuple[int, int]]) -> list[NDArray[Any]]:
        """Return the tokens from start to stop of each part, all read at once. Raises SpecError where that fails."""
        bounds = [(start * self.itemsize, stop * self.itemsize) for start, stop in parts]
        try:
            contents = _ranges(self.url, bounds)
        except OSError as error:
            raise bad(self.url, f"cannot be read: {error}", "go on with `resume=` once it can") from None
        if [len(content) for content in contents] != [stop - start for start, stop in bounds]:
            hint = "serve it where ranges of bytes can be asked for, or copy it here"
            raise bad(self.url, "other bytes come than were asked for", hint)
        return [np.frombuffer(content, self.dtype) for content in contents]


def content(url: str) -> bytes:
    """Return a small file. Raises OSError where it cannot be read."""
    files, path = _opened(url)
    return bytes(_patiently(lambda: files.cat_file(path)))


def size(url: str) -> int | None:
    """Return the bytes of a file, None where nobody says. Raises OSError where it cannot be read."""
    files, path = _opened(url)
    size = _patiently(lambda: files.size(path))
    return None if size is None else int(size)


def _ranges(url: str, bounds: Sequence[tuple[int, int]]) -> list[bytes]:
    files, path = _opened(url)
    starts, stops = ([bound[end] for bound in bounds] for end in (0, 1))
    return list(_patiently(lambda: files.cat_ranges([path] * len(bounds), starts, stops, on_error="raise")))


def _opened(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, which fsspec keeps, and the path there."""
    try:
        import fsspec
    except ImportError:
        raise bad(url, "data behind a URL need fsspec", "pip install 'shardwright[runtime]'") from None
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        hint = "install the package of this protocol (s3fs, gcsfs, 'fsspec[http]'), or see fsspec's documentation"
        raise bad(url, str(error), hint) from None
    return files, str(path)


def _patiently(call: Callable[[], T]) -> T:
    """Return what `call` does, which is repeated where it fails. Raises OSError."""
    for seconds in (*RETRY_SECONDS, None):
        try:
            return call()
        except (FileNotFoundError, PermissionError):
            raise
        except Exception as error:  # of whatever kind the protocol's package has
            if seconds is None:
                raise OSError(f"{type(error).__name__}: {error}") from None
            time.sleep(seconds)
    raise AssertionError("the last call returns or raises")
