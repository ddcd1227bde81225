#!/usr/bin/env bash
# shardwright evaluate --launch run.sh --cluster 1x8xA100-SXM-40+2x8xV100-SXM2
# On 8 A100-SXM-40 + 16 V100-SXM2, machines in this order.
# gpt2-medium on 24 GPUs. Written by shardwright for `shardwright train`.
set -euo pipefail
# Yours to set, in the environment:
: "${DATA:?token file of shardwright tokens}"
: "${OUT:?folder for checkpoints and metrics}"
export PYTORCH_ALLOC_CONF=expandable_segments:True
GPUS=(8 8 8)
exec torchrun --nnodes 3 --nproc-per-node "${GPUS[NODE_RANK]}" --node-rank "${NODE_RANK}" \
    --master-addr "${MASTER_ADDR}" --master-port 29500 \
    -m shardwright train plan.json --data "${DATA}" --out "${OUT}" "$@"
