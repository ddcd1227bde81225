"""How long synthesis takes by depth, without tracing, and what whole units cost.

.venv/bin/python benchmarks/spmd_search.py
"""

from __future__ import annotations

import time
from dataclasses import replace

from spmd import HAP

from shardwright.synthesis.models.transformers import GPT2, language_model
from shardwright.synthesis.synthesize import search, synthesize

ROOMY = HAP.unlimited()
DEPTHS = (12, 24, 96)
ROWS = (4, 16, 32, 128)  # a GPU


def main() -> None:
    """Print seconds of the processor by depth, and the rounding loss by rows a GPU."""
    for layers in DEPTHS:
        graph = language_model(replace(GPT2, layers=layers), batch=32 * HAP.ranks, seq_len=128)
        begin = time.process_time()
        program = synthesize(graph, ROOMY)
        spent = time.process_time() - begin
        print(f"{layers:>3} layers: {spent:5.2f} s, a step of {program.seconds:.3f} s", flush=True)
    for rows in ROWS:
        found = search(language_model(replace(GPT2, layers=12), batch=rows * HAP.ranks, seq_len=128), ROOMY)
        print(f"{rows:>3} rows a GPU: whole units cost {found.rounding_loss:.2%}", flush=True)


if __name__ == "__main__":
    main()
