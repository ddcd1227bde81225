"""When a rank counts as lost."""

from __future__ import annotations

import pytest

from shardwright.runtime.job.watchdog import Sign, judged


@pytest.mark.parametrize(
    ("sign", "silent", "words"),
    [
        (Sign(count=3, doing="waiting for a message", seconds=99.0), 1.0, ""),
        (Sign(count=3, doing="computing, forward", seconds=19.0), 1.0, ""),
        (Sign(count=3, doing="computing, forward", seconds=21.0), 1.0, "rank 2 is stuck: computing, forward for 21 s"),
        (Sign(count=3, doing="updating", seconds=0.0), 12.0, "no sign of life for 12 s; last seen updating"),
        (None, 12.0, "rank 2 has given no sign of life"),
    ],
)
def test_verdicts(sign: Sign | None, silent: float, words: str) -> None:
    verdict = judged("rank 2", sign, silent, patience_seconds=10.0)
    assert words in verdict and bool(verdict) == bool(words)
