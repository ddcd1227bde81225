"""How long synthesis takes by depth and by kind of model, without tracing, and what whole units cost.

.venv/bin/python -m benchmarks.spmd_search
"""

from __future__ import annotations

import time
from dataclasses import replace

from benchmarks.spmd import HAP
from tests.synthesis.models import BERT_BASE, GPT2, LLAMA_1B, WithCapacity
from tests.synthesis.vgg import vgg19

from shardwright import load_model
from shardwright.synthesis.graph import Graph
from shardwright.synthesis.models.transformers import language_model, training_step
from shardwright.synthesis.synthesize import search, synthesize

ROOMY = HAP.unlimited()
DEPTHS = (12, 24, 96)
ROWS = (4, 16, 32, 128)  # a GPU


def main() -> None:
    """Print seconds of the processor by depth, and the rounding loss by rows a GPU."""
    for layers in DEPTHS:
        graph = language_model(replace(GPT2, layers=layers), batch=32 * HAP.ranks, seq_len=128)
        begin = time.process_time()
        search(graph, ROOMY)
        middle = time.process_time()
        program = synthesize(graph, ROOMY)
        spent = time.process_time() - middle
        print(
            f"{layers:>3} layers: {middle - begin:5.2f} s, {spent:5.2f} s with the program written out, "
            f"a step of {program.seconds:.3f} s",
            flush=True,
        )
    for name, graph in models().items():
        begin = time.process_time()
        choice = search(graph, ROOMY).choice
        print(f"{name}: {time.process_time() - begin:5.2f} s, at most {choice.gap:.1%} above the optimum", flush=True)
    for rows in ROWS:
        found = search(language_model(replace(GPT2, layers=12), batch=rows * HAP.ranks, seq_len=128), ROOMY)
        print(
            f"{rows:>3} rows a GPU: whole units cost {found.seconds / found.exact.seconds.total - 1.0:.2%}", flush=True
        )


def models() -> dict[str, Graph]:
    """Return a step of models whose search takes longest."""
    llama, experts = replace(LLAMA_1B, layers=24), replace(BERT_BASE, experts=WithCapacity(count=16, width=3072))
    mixtral = load_model("mixtral-8x7b")
    few, many = 2 * HAP.ranks, 32 * HAP.ranks
    return {
        "24 layers of Llama": language_model(llama, batch=many, seq_len=128),
        "24 layers of Llama, 2 rows a GPU": language_model(llama, batch=few, seq_len=128),
        "BERT with 16 experts": language_model(experts, batch=many, seq_len=128),
        "Mixtral 8x7B, 2 rows a GPU": training_step(mixtral, batch=few, seq_len=128, dtype="float32"),
        "VGG-19 at 32×32": vgg19(batch=many, image=32),
    }


if __name__ == "__main__":
    main()
