#!/bin/bash
# After microsoft/Megatron-DeepSpeed (NVIDIA/Megatron-LM@62bc456): examples/azure/run-1t.sh
set -ex
BASE_PATH=$PWD/dataset/
DATA_PATH=${BASE_PATH}/BookCorpusDataset_text_document
DS_CONFIG=ds_config.json
# Hostfile path
HF=/job/hostfile
TP=1
PP=1
# Model: 310B
#NLAYERS=96
#HIDDEN=16384
# Model 1T
NLAYERS=128
HIDDEN=25600
HEADS=160
SEQ=1024
MICRO_BATCH=1
NODES=1
GPN=8
GLOBAL_BATCH=$(( ${GPN} * ${MICRO_BATCH} * ${NODES} ))
SP=15
OFFLOAD_DEVICE="cpu"
CPU_OPTIM=" --cpu-optimizer"
#CPU_OPTIM=" "
ZERO_STAGE=3
OUTPUT_DIR=ds_z_off-${OFFLOAD_DEVICE}_stage_${ZERO_STAGE}_nl${NLAYERS}_hs${HIDDEN}
mkdir -p $OUTPUT_DIR
cat <<EOT > $DS_CONFIG
{
  "train_batch_size" : $GLOBAL_BATCH,
  "train_micro_batch_size_per_gpu": $MICRO_BATCH,
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {
      "device": "$OFFLOAD_DEVICE"
    }
  },
  "fp16": {
    "enabled": true,
    "initial_scale_power" : $SP
  }
}
EOT
ds_args=" "
ds_args=" --deepspeed ${ds_args}"
ds_args=" --no-pipeline-parallel ${ds_args}" 
ds_args=" --deepspeed_config=$DS_CONFIG ${ds_args}"
ds_args=" --zero-stage=$ZERO_STAGE ${ds_args}"
ds_args=" --deepspeed-activation-checkpointing ${ds_args}"
deepspeed --force_multi --num_nodes=$NODES --hostfile $HF pretrain_gpt.py \
    --tensor-model-parallel-size $TP \
    --pipeline-model-parallel-size $PP \
    --num-layers $NLAYERS \
    --hidden-size $HIDDEN \
    --num-attention-heads $HEADS \
    --seq-length $SEQ \
    --loss-scale $SP \
    --max-position-embeddings $SEQ \
    --micro-batch-size $MICRO_BATCH \
    --global-batch-size $GLOBAL_BATCH \
    --train-iters 1000 \
    --data-path $DATA_PATH \
    --vocab-file $BASE_PATH/gpt2-vocab.json \
    --fp16 \
    --checkpoint-activations \
    $CPU_OPTIM $ds_args \
    --exit-interval 5000 | tee ${OUTPUT_DIR}/output.log
