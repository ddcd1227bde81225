"""Training data of one or several token files: which sample of which file the n-th sample of training is, and how other
data are told apart without reading all of them. Needs no PyTorch.

Of every `BLOCK` samples each file has its share, to the nearest whole number, in an order that the seed and the number
of the block decide. So any sample is found without those before it, whatever the plan, and a run goes on at the sample
where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from shardwright.errors import bad
from shardwright.records import record
from shardwright.runtime.storage.data import Location, Samples, TokenFile, document_end, make_samples, open_tokens

BLOCK = 10_000


@record
class Source:
    """A token file that a run is told of, and its weight beside the others; None: the number of its tokens."""

    path: Location
    weight: float | None = None


@record(slots=False)
class Mixture:
    """Samples of several files: of every `BLOCK` of them so many of each as `quotas` says."""

    parts: tuple[Samples, ...]
    quotas: tuple[int, ...]
    seed: int

    def rows(self, first: int, count: int) -> NDArray[np.int64]:
        """Return `count` samples of training from number `first` on, [count, seq_len + 1]. Raises SpecError where a
        token is not in the vocabulary."""
        places = [self._where(number) for number in range(first, first + count)]
        rows = np.empty((count, self.parts[0].seq_len + 1), dtype=np.int64)
        for file in {file for file, _ in places}:
            numbers = [row for row, (other, _) in enumerate(places) if other == file]
            rows[numbers] = self.parts[file].rows([places[row][1] for row in numbers])
        return rows

    def _where(self, number: int) -> tuple[int, int]:
        """Return the file of the `number`-th sample, and which of that file's samples it is."""
        block, place = divmod(number, BLOCK)
        files, ranks = _order(self.seed, block, self.quotas)
        file = int(files[place])
        return file, block * self.quotas[file] + int(ranks[place])

    @property
    def name(self) -> str:
        """The names of the files, with their shares where there are several."""
        names = [part.file.name for part in self.parts]
        shares = (f"{name}={quota / BLOCK:g}" for name, quota in zip(names, self.quotas, strict=True))
        return names[0] if len(names) == 1 else " ".join(shares)

    def document_end(self) -> int:
        """Return the token that ends a document. Raises SpecError where the files do not say which."""
        return document_end(self.parts[0].file)

    @property
    def tokens(self) -> int:
        return sum(len(part.file.tokens) for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """A hash by which other data, or the same in other shares, are told apart."""
        prints = [fingerprint(part.file) for part in self.parts]
        return prints[0] if len(prints) == 1 else xxhash.xxh3_128_hexdigest(f"{prints} {self.quotas}".encode())


def open_mixture(sources: Sequence[Source], seq_len: int, seed: int, vocab: int, batch: int) -> Mixture:
    """Return the samples of token files, of which a step takes `batch`. Raises SpecError where one of them cannot be
    used, has too few samples, another tokenizer or next to no weight."""
    files = [open_tokens(source.path) for source in sources]
    require_one_tokenizer(files)
    quotas = _quotas(sources, files)
    parts = tuple(
        make_samples(file, seq_len, seed, vocab, -(-batch * quota // BLOCK))
        for file, quota in zip(files, quotas, strict=True)
    )
    return Mixture(parts=parts, quotas=quotas, seed=seed)


def _quotas(sources: Sequence[Source], files: Sequence[TokenFile]) -> tuple[int, ...]:
    """Return how many of `BLOCK` samples each file has: the largest remainders are rounded up."""
    weights = [len(f.tokens) if s.weight is None else s.weight for s, f in zip(sources, files, strict=True)]
    exact = [BLOCK * weight / sum(weights) for weight in weights]
    order = sorted(range(len(exact)), key=lambda i: (int(exact[i]) - exact[i], i))
    missing = BLOCK - sum(map(int, exact))
    quotas = tuple(int(share) + (i in order[:missing]) for i, share in enumerate(exact))
    for file, quota in zip(files, quotas, strict=True):
        if not quota:
            message = f"would give less than one sample in {BLOCK:,}"
            raise bad(str(file.path), message, "give it more weight, or leave it out")
    return quotas


def require_one_tokenizer(files: Sequence[TokenFile]) -> None:
    """Raise SpecError for the first file whose tokens mean something else than those of the first one."""
    for file in files[1:]:
        if (Path(file.tokenizer).name, file.vocab, file.end) != (
            Path(files[0].tokenizer).name, files[0].vocab, files[0].end,
        ):  # fmt: skip
            message = f"has tokens of {file.tokenizer}, {files[0].path} of {files[0].tokenizer}"
            raise bad(str(file.path), message, "make all files with one tokenizer")


@lru_cache(maxsize=4)
def _order(seed: int, block: int, quotas: tuple[int, ...]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return of each sample of a block its file, and how many of that file come before it in the block."""
    files = np.repeat(np.arange(len(quotas)), quotas)
    if len(quotas) > 1:
        files = np.random.default_rng([seed, block, len(quotas)]).permutation(files)
    ranks = np.empty(BLOCK, np.intp)
    ranks[np.argsort(files, kind="stable")] = np.concatenate([np.arange(quota) for quota in quotas])
    return files, ranks


def fingerprint(file: TokenFile) -> str:
    """Return a hash of the number of tokens and of blocks that are spread over them."""
    content = xxhash.xxh3_128(f"{file.tokens.dtype.name} {len(file.tokens)}".encode())
    for _, block in file.spread:
        content.update(np.ascontiguousarray(block).data.cast("B"))
    return content.hexdigest()
