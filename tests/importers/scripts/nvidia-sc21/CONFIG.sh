#!/bin/bash
# After NVIDIA/Megatron-LM@1916693: examples/academic_paper_scripts/sc21/CONFIG.sh
: "${MEGATRON_CODE_DIR:?Set MEGATRON_CODE_DIR, e.g. /path/to/Megatron-LM}"
export MEGATRON_CODE_DIR
: "${BPE_VOCAB_FILE:?Set BPE_VOCAB_FILE, e.g. /path/to/gpt2-vocab.json}"
export MEGATRON_PARAMS=" ${MEGATRON_EXTRA_PARAMS} \
	--tensor-model-parallel-size ${TP} \
	--pipeline-model-parallel-size ${PP} \
	--micro-batch-size ${MBS} \
	--global-batch-size ${GBS} \
        --num-layers ${NLS} \
        --hidden-size ${HS} \
        --num-attention-heads ${NAH} \
	--DDP-impl ${DDP} \
	--vocab-file ${BPE_VOCAB_FILE} \
        --seq-length 2048 \
        --max-position-embeddings 2048 \
        --train-iters 500 \
        --fp16 \
	--loss-scale 8192 "
