"""Training data: a file of tokens, memory-mapped or behind a URL, and samples in an order that depends on seed and step
alone.

`NAME.bin` has the tokens as little-endian uint16 or uint32; `NAME.json` beside it says which, how many, and from what
tokenizer: {"version": 1, "dtype": "uint16", "tokens": 1000, "vocab": 257, "tokenizer": "bytes", "end": 256}. `end` is
the token that ends a text.

Of a file behind a URL that fsspec understands (https://, s3://, gs://, …) only those bytes are read that are needed.
What fails is tried again for some seconds, but for what is missing or not allowed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import bad
from shardwright.files import replacing, write_atomically
from shardwright.records import record

BYTES = "bytes"
END_OF_TEXT = 256
BLOCK_BYTES, MOST_SCANNED_BYTES = 1 << 24, 1 << 32
SPREAD_BYTES, SPREAD_BLOCKS = 1 << 12, 1 << 10
SCANNED_TOKENS = 1 << 24  # at a time
Location = Path | str  # where a file is: a path, or a URL as text
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0)
T = TypeVar("T")


@record(slots=False)
class TokenFile:
    """An open token file. `vocab` is one more than the largest number a token may have, `end` the token that ends a
    text, None where it has none."""

    path: Location
    tokens: NDArray[Any] | RemoteTokens
    vocab: int
    tokenizer: str
    end: int | None = None

    @property
    def name(self) -> str:
        """The last part of its path."""
        return str(self.path).rpartition("/")[2]

    def read(self, parts: Sequence[tuple[int, int]]) -> list[NDArray[Any]]:
        """Return the tokens from start to stop of each part."""
        tokens = self.tokens
        return tokens.read(parts) if isinstance(tokens, RemoteTokens) else [tokens[start:stop] for start, stop in parts]

    @cached_property
    def spread(self) -> list[tuple[int, NDArray[Any]]]:
        """1,024 blocks of 4 KiB spread over the file, with where each starts: all of a file that has no more."""
        tokens_at_once = SPREAD_BYTES // self.tokens.itemsize
        last = max(len(self.tokens) - tokens_at_once, 0)
        count = min(SPREAD_BLOCKS, -(-len(self.tokens) // tokens_at_once))
        starts = [last * number // max(count - 1, 1) for number in range(count)]
        blocks = self.read([(start, min(start + tokens_at_once, len(self.tokens))) for start in starts])
        return list(zip(starts, blocks, strict=True))


@record(slots=False)
class Samples:
    """The samples of a token file: sequences of `seq_len` tokens, which overlap by the one that is only a target."""

    file: TokenFile
    seq_len: int
    seed: int
    vocab: int

    @property
    def count(self) -> int:
        """Samples of one epoch."""
        return (len(self.file.tokens) - 1) // self.seq_len

    def rows(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Return samples of training by their numbers, [len(numbers), seq_len + 1]. Each epoch has its own order.
        Raises SpecError where a token is not in the vocabulary."""
        starts = [self._start(number) for number in numbers]
        read = self.file.read([(start, start + self.seq_len + 1) for start in starts])
        for start, tokens in zip(starts, read, strict=True):
            _require_below(tokens, self.vocab, self.file.path, start)
        return np.stack(read).astype(np.int64)

    def _start(self, number: int) -> int:
        epoch, index = divmod(number, self.count)
        return int(_order(self.seed, epoch, self.count)[index]) * self.seq_len


def location_of(text: str) -> Location:
    """Return where a file is that somebody names."""
    return text if "://" in text else Path(text)


def header_path(path: Path) -> Path:
    return path.with_suffix(".json")


def _header_url(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=str(PurePosixPath(parts.path).with_suffix(".json"))))


def open_tokens(path: Location) -> TokenFile:
    """Open a token file. Raises SpecError where it or its header is missing, or the two disagree."""
    try:
        header = header_path(path) if isinstance(path, Path) else _header_url(path)
    except ValueError:  # as of a folder above, or of nothing
        raise bad(
            f"{str(path)!r}", "is no name of a token file", "name one, as `shardwright tokens` writes it"
        ) from None
    if str(header) == str(path):
        raise bad(str(path), "is the name of a header", "name the file of tokens beside it, which ends in .bin")
    try:
        text = header.read_bytes() if isinstance(header, Path) else content(header)
    except FileNotFoundError:
        hint = "make both with `shardwright tokens TEXT… -o NAME.bin`"
        raise bad(str(path), f"has no header {str(header).rpartition('/')[2]}", hint) from None
    except OSError as error:
        raise bad(str(header), f"cannot be read: {error.strerror or error}", "check path and permissions") from None
    try:
        found = json.loads(text)
        dtype, count, vocab = DTYPES[found["dtype"]], int(found["tokens"]), int(found["vocab"])
        tokenizer = str(found.get("tokenizer", ""))
        end = found.get("end", END_OF_TEXT if tokenizer == BYTES else None)
        if not (end is None or (isinstance(end, int) and 0 <= end < vocab)):
            raise ValueError(end)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise bad(str(header), "is no header of a token file", "make it with `shardwright tokens`") from None
    try:
        there = path.stat().st_size if isinstance(path, Path) else size(path)
    except OSError as error:
        raise bad(str(path), f"cannot be read: {error.strerror or error}", "check the path") from None
    if there != count * dtype.itemsize or not count:
        message = f"has {'?' if there is None else there} bytes, its header says {count} tokens of {dtype.itemsize}"
        raise bad(str(path), message, "make it anew with `shardwright tokens`")
    remote = RemoteTokens(url=str(path), count=count, dtype=dtype)
    tokens = np.memmap(path, dtype=dtype, mode="r") if isinstance(path, Path) else remote
    return TokenFile(path=path, tokens=tokens, vocab=vocab, tokenizer=tokenizer, end=end)


def make_samples(file: TokenFile, seq_len: int, seed: int, vocab: int, batch: int) -> Samples:
    """Return the samples of a file, of which a step takes `batch`. Raises SpecError where it has too few, or is said to
    have tokens that the model lacks."""
    if file.vocab > vocab:
        message = f"has tokens up to {file.vocab - 1}, the model's vocabulary ends at {vocab - 1}"
        raise bad(str(file.path), message, "use the model's tokenizer, or plan a model with a larger vocabulary")
    samples = Samples(file=file, seq_len=seq_len, seed=seed, vocab=vocab)
    if samples.count < batch:
        message = (
            f"has {len(file.tokens):,} tokens, {max(samples.count, 0):,} samples of {seq_len:,}; a step takes {batch:,}"
        )
        raise bad(str(file.path), message, "give more text, or plan a smaller global batch or a shorter sequence")
    return samples


def require_known(file: TokenFile, vocab: int) -> None:
    """Raise SpecError where a file has a token that the model lacks, whatever its header says. All of a file of up to
    4 GiB is read; of a larger one as much, spread over it; of one behind a URL 4 MiB. Samples are checked again before
    they are used (`Samples.rows`)."""
    tokens = file.tokens
    if isinstance(tokens, RemoteTokens):
        for start, numbers in file.spread:
            _require_below(numbers, vocab, file.path, start)
        return
    tokens_at_once = BLOCK_BYTES // tokens.itemsize
    blocks = -(-len(tokens) // tokens_at_once)
    step = max(blocks * BLOCK_BYTES // MOST_SCANNED_BYTES, 1)
    for block in range(0, blocks, step):
        _require_below(
            tokens[block * tokens_at_once : (block + 1) * tokens_at_once], vocab, file.path, block * tokens_at_once
        )


def _require_below(tokens: NDArray[Any], vocab: int, path: Location, first: int) -> None:
    if len(tokens) and int(tokens.max()) >= vocab:
        where = first + int(np.argmax(tokens >= vocab))
        message = f"token {where:,} is {int(tokens[where - first]):,}, the model's vocabulary ends at {vocab - 1:,}"
        raise bad(str(path), message, "use the model's tokenizer, or plan a model with a larger vocabulary")


def document_end(file: TokenFile) -> int:
    """Return the token that ends a document. Raises SpecError where the file does not say which."""
    if file.end is None:
        hint = 'make it anew with `shardwright tokens`, or write "end" into its header'
        raise bad(str(file.path), "does not say which token ends a document", hint)
    return file.end


def document_tokens(file: TokenFile, seq_len: int) -> float:
    """Return the length of a token's document on average, Σ L² / Σ L, where samples of `seq_len` tokens cut documents.
    Raises SpecError where the file does not say what ends one."""
    end, squares = document_end(file), 0.0
    tokens_at_once = max(SCANNED_TOKENS // seq_len, 1) * seq_len
    for begin in range(0, len(file.tokens), tokens_at_once):
        part = np.asarray(file.tokens[begin : begin + tokens_at_once])
        ends = np.flatnonzero(part == end) + 1
        cuts = np.unique(np.concatenate([ends, np.arange(0, len(part), seq_len), [len(part)]]))
        squares += float(np.square(np.diff(cuts), dtype=np.float64).sum())
    return squares / len(file.tokens)


def write_tokens(path: Path, texts: Iterable[Path], tokenizer: str = BYTES) -> TokenFile:
    """Write the tokens of text files, each followed by the token that ends a text, and return the file opened.

    `tokenizer` is "bytes", or a Hugging Face tokenizer.json (or its folder), which needs the package `tokenizers`.
    """
    encode, vocab, end = _bytes_encoder() if tokenizer == BYTES else _encoder(Path(tokenizer))
    dtype = "uint16" if vocab <= 1 << 16 else "uint32"
    count = 0
    with replacing(path) as temporary:
        with temporary.open("wb") as out:
            for tokens in map(encode, _texts(texts)):
                out.write(np.asarray(tokens, dtype=DTYPES[dtype]).tobytes())
                count += len(tokens)
        if not count:
            raise bad(str(path), "there is no text to write", "give files with text")
    header = {"version": 1, "dtype": dtype, "tokens": count, "vocab": vocab, "tokenizer": tokenizer, "end": end}
    write_atomically(header_path(path), json.dumps(header, indent=1) + "\n")
    return open_tokens(path)


def _texts(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            yield path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise bad(str(path), f"cannot be read: {error.strerror}", "give text files") from None


def _bytes_encoder() -> tuple[Any, int, int | None]:
    def encode(text: str) -> Sequence[int]:
        return [*text.encode("utf-8"), END_OF_TEXT] if text else []

    return encode, END_OF_TEXT + 1, END_OF_TEXT


def _encoder(path: Path) -> tuple[Any, int, int | None]:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise bad("`tokenizer=`", "needs the package tokenizers", "pip install 'shardwright[text]'") from None
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        raise bad(str(file), f"is no tokenizer: {error}", "give a Hugging Face tokenizer.json") from None
    ends = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<|eot_id|>", "<eos>")
    end = next((number for text in ends if (number := tokenizer.token_to_id(text)) is not None), None)

    def encode(text: str) -> Sequence[int]:
        return [*tokenizer.encode(text, add_special_tokens=False).ids, *([] if end is None else [end])]

    return encode, int(tokenizer.get_vocab_size()), end


@lru_cache(maxsize=32)
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)


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
            raise bad(self.url, "sent other bytes than were asked for", hint)
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
