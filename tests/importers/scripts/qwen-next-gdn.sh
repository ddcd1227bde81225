#!/bin/bash
# After a launch of Qwen3-Next with a gated delta net: stored text 68299079089
srun --mpi=pmix python pretrain_gpt.py \
    --num-layers 60 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 2 \
    --ffn-hidden-size 10240 --vocab-size 248320 \
    --num-experts 512 --moe-router-topk 10 --moe-ffn-hidden-size 1024 \
    --experimental-attention-variant gated_delta_net --linear-attention-freq 4 \
    --mtp-num-layers 1 \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size 2 \
    --expert-model-parallel-size 64 \
    --pipeline-model-parallel-layout 'Et*16|t*16|t*16|t*12,m,L' \
    --use-distributed-optimizer \
    --moe-token-dispatcher-type flex \
    --micro-batch-size 1 --global-batch-size 2048 --seq-length 4096 --bf16
