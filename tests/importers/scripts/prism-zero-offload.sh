#!/bin/bash
# After a benchmark of ZeRO-Offload with Megatron-DeepSpeed: stored text 40661555398
MODE=$1
MODEL_SIZE=$2
MICRO_BATCH=$3
ACTIVATION_CHECKPOINTING=$4
if [[ "$MODE" != "prism" && "$MODE" != "zero_offload" && "$MODE" != "zero_infinity" ]]; then
    echo "Invalid mode. Please use 'prism', 'zero_offload', or 'zero_infinity'."
    exit 1
fi
case "$MODEL_SIZE" in
    7B) HIDDEN=4096; LAYERS=32 ;;
    13B) HIDDEN=5120; LAYERS=40 ;;
    *) echo "unknown size"; exit 1 ;;
esac
DATA_PATH="../../training_datasets"
if [[ ${ACTIVATION_CHECKPOINTING} == "true" ]]; then
    ac_config="--checkpoint-activations --deepspeed-activation-checkpointing"
else
    ac_config=""
fi
deepspeed --num_nodes 1 --num_gpus 1 --bind_cores_to_rank ./pretrain_gpt.py --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --ds-sequence-parallel-size 1 --num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads 32 --seq-length 2048 --loss-scale 12 --max-position-embeddings 2048 --micro-batch-size $MICRO_BATCH --global-batch-size 8 --train-iters 100 --data-path $DATA_PATH/my-gpt2_text_document --vocab-file $DATA_PATH/gpt2-vocab.json --merge-file $DATA_PATH/gpt2-merges.txt --fp16 --make-vocab-size-divisible-by 256 --cpu-optimizer --deepspeed --deepspeed_config=${MODE}.json --zero-stage=3 --no-pipeline-parallel $ac_config
