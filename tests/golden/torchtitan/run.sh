#!/usr/bin/env bash
# llama-3.1-8b on 8 H100-SXM. Written by shardwright for torchtitan 0.3.0.
set -euo pipefail
: "${HF_ASSETS_PATH:?folder with the tokenizer}"
: "${LEARNING_RATE:?peak learning rate}"
PYTHONPATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd):${PYTHONPATH:-}"
export PYTHONPATH PYTORCH_ALLOC_CONF=expandable_segments:True
exec torchrun --nnodes 1 --nproc-per-node 8 \
    -m torchtitan.train --module shardwright_plan --config plan "$@"
