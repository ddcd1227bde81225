#!/bin/bash
# After a launch of IBM's Granite-Megatron-LM on MI250X: stored text 6303496748
# MI250x
export NCCL_SOCKET_NTHREADS=2
export CUDA_DEVICE_MAX_CONNECTIONS=1
DISTRIBUTED_ARGS="\
--nproc_per_node 2 \
--nnodes 1 \
--node_rank 0 \
"
CHECKPOINT_PATH=checkpoints-absolute  # Adjust: Directory to store the checkpoints
GPT_ARGS="\
--tensor-model-parallel-size 2 \
--pipeline-model-parallel-size 1 \
--num-layers 32 \
--hidden-size 3072 \
--num-attention-heads 32 \
--attention-head-type multiquery \
--seq-length 1024 \
--max-position-embeddings 1024 \
--attention-dropout 0.1 \
--hidden-dropout 0.1 \
--micro-batch-size 1 \
--global-batch-size 4 \
--train-iters 10 \
--bf16 \
--fim-rate 0 \
--structured-logs \
--structured-logs-dir $CHECKPOINT_PATH/logs
"
torchrun $DISTRIBUTED_ARGS \
    pretrain_gpt.py \
    $GPT_ARGS
