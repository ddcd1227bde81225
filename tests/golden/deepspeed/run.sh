#!/usr/bin/env bash
# shardwright evaluate --launch run.sh --model llama-3.1-8b --seq-len 4096
# Written by shardwright for DeepSpeed 0.19.8.
set -euo pipefail
: "${TRAIN_SCRIPT:?your training script; it reads training_arguments.json, which names ds_config.json}"
cd "$(dirname "${BASH_SOURCE[0]}")"
exec torchrun --nnodes 1 --nproc-per-node 8 \
    "${TRAIN_SCRIPT}" training_arguments.json "$@"
