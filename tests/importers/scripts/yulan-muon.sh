#!/bin/bash
# After a launch of YuLan's experts with Muon: stored text 37752633006
GPUS_PER_NODE=8
NUM_NODES=1
MASTER_ADDR=${MASTER_ADDR:-localhost}
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --disable-bias-linear
    --num-layers 56
    --hidden-size 1920
    --ffn-hidden-size 4800
    --num-attention-heads 30
    --num-query-groups 6
    --seq-length 4096
    --max-position-embeddings 4096
    --rotary-base 100000
    --normalization RMSNorm
    --position-embedding-type rope
    --group-query-attention
    --swiglu
)
MOE_ARGS=(
    --num-experts 8
    --expert-model-parallel-size 4
    --moe-router-load-balancing-type none
    --moe-router-enable-expert-bias
    --moe-router-score-function sigmoid
    --moe-grouped-gemm
    --moe-permute-fusion
    --moe-router-topk 2
    --moe-token-dispatcher-type flex  # deepep
    --moe-enable-deepep
)
TRAINING_ARGS=(
    --optimizer muon
    --micro-batch-size 1
    --global-batch-size 64
    --train-iters 5000
    --bf16
    --muon-matched-adamw-rms 0.2
    --use-distributed-optimizer
)
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 1
)
DATA_ARGS=(
    --data-path $DATA_PATH
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model yulan-team/YuLan-Mini
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${GPT_MODEL_ARGS[@]} ${MOE_ARGS[@]} ${TRAINING_ARGS[@]} ${MODEL_PARALLEL_ARGS[@]} ${DATA_ARGS[@]}
