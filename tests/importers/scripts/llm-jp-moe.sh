#!/bin/bash
# After llm-jp/scripts@8451f13: pretrain/scripts/0080_fine_grained_shared_scratch/16expert_4granularity_…_32layer/train.sh
set -eu -o pipefail
source scripts/environment.sh
source scripts/mpi_variables.sh
ulimit -c 0
export CUDA_DEVICE_MAX_CONNECTIONS=1
NUM_GPUS=$((${NUM_NODES} * ${NUM_GPUS_PER_NODE}))
HIDDEN_SIZE=2048
NUM_LAYERS=32
SEQ_LENGTH=4096
TENSOR_PARALLEL_SIZE=1
PIPELINE_PARALLEL_SIZE=2
EXPERT_PARALLEL_SIZE=8
DATA_PARALLEL_SIZE=$((${NUM_GPUS} / (${TENSOR_PARALLEL_SIZE} * ${PIPELINE_PARALLEL_SIZE} * ${EXPERT_PARALLEL_SIZE})))
MICRO_BATCH_SIZE=2
GLOBAL_BATCH_SIZE=1024
TRAIN_STEPS=492120
TOKENIZER_MODEL=src/llm-jp-tokenizer/models/ver3.0/llm-jp-tokenizer-100k.ver3.0b1.model
DATASET_DIR=/home/shared/corpus/llm-jp-corpus/v3.0.0
TRAIN_DATA_PATH=""
TRAIN_DATA_PATH="${TRAIN_DATA_PATH} 14486363187 ${DATASET_DIR}/train/code/stack_0000.jsonl_text_document"
TRAIN_DATA_PATH="${TRAIN_DATA_PATH} 12799385151 ${DATASET_DIR}/train/code/stack_0001.jsonl_text_document"
MODEL_ARGS=(
    --use-mcore-models
    --disable-bias-linear
    --seq-length ${SEQ_LENGTH}
    --max-position-embeddings ${SEQ_LENGTH}
    --num-layers ${NUM_LAYERS}
    --hidden-size ${HIDDEN_SIZE}
    --ffn-hidden-size 1280
    --num-attention-heads 16
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --normalization RMSNorm
    --norm-epsilon 1e-5
    --position-embedding-type rope
    --swiglu
    --untie-embeddings-and-output-weights
    --num-query-groups 16
    --no-masked-softmax-fusion
    --rotary-base 10000
)
MOE_ARGS=(
    --num-experts 64
    --moe-router-topk 8
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
    --overlap-param-gather
    --overlap-grad-reduce
)
DATA_ARGS=(
    --tokenizer-type Llama2Tokenizer
    --tokenizer-model ${TOKENIZER_MODEL}
    --data-path $TRAIN_DATA_PATH
)
TRAINING_ARGS=(
    --micro-batch-size ${MICRO_BATCH_SIZE}
    --global-batch-size ${GLOBAL_BATCH_SIZE}
    --train-iters ${TRAIN_STEPS}
    --optimizer adam
    --bf16
    --use-flash-attn
    --transformer-impl "transformer_engine"
    --attention-softmax-in-fp32
    --accumulate-allreduce-grads-in-fp32
)
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TENSOR_PARALLEL_SIZE}
    --pipeline-model-parallel-size ${PIPELINE_PARALLEL_SIZE}
    --expert-model-parallel-size ${EXPERT_PARALLEL_SIZE}
    --use-distributed-optimizer
    --sequence-parallel
)
python \
    src/Megatron-LM/pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    ${MOE_ARGS[@]} \
    ${DATA_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${MODEL_PARALLEL_ARGS[@]}
