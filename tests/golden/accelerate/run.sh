#!/usr/bin/env bash
# shardwright evaluate --launch run.sh --model llama-3.1-8b --seq-len 4096
# Written by shardwright for Accelerate 1.15.0.
set -euo pipefail
: "${TRAIN_SCRIPT:?your training script; it reads training_arguments.json}"
cd "$(dirname "${BASH_SOURCE[0]}")"
exec accelerate launch --config_file accelerate.yaml \
    "${TRAIN_SCRIPT}" training_arguments.json "$@"
