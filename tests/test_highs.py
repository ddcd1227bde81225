"""What HiGHS is asked, and that it says nothing by itself."""

from __future__ import annotations

import subprocess
import sys

SOLVE = """
import numpy as np
from shardwright.highs import by_columns, highs, status
one = np.ones(1)
matrix = by_columns(np.zeros(1, int), np.zeros(1, int), one, 1)
for integer in (None, np.array([True])):
    solver = highs(
        one, matrix, lower=0 * one, upper=9 * one, row_lower=2 * one, row_upper=9 * one, integer=integer, settings={}
    )
    solver.run()
    assert status(solver) == "optimal" and solver.getSolution().col_value == [2.0]
"""


def test_nothing_is_written_beside_the_answer() -> None:
    """Not even the greeting of HiGHS, which would stand before the document of --json."""
    done = subprocess.run([sys.executable, "-c", SOLVE], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
