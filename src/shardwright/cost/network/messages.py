"""Times of messages over a measured link, between and beyond the sizes that were measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import Array, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTimes:
    """Ascending sizes in bytes and the seconds of a message of each, which never fall."""

    bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def of(self, size_bytes: Array) -> Floats:
        """Return the seconds of messages: on straight lines between the sizes that were measured; smaller ones take as
        long as the smallest, larger ones are as fast as the largest."""
        beyond = np.maximum(size_bytes / self.bytes[-1], 1.0)
        return np.asarray(np.interp(size_bytes, self.bytes, self.seconds) * beyond)
