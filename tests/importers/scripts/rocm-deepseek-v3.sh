#!/bin/bash
# After NVIDIA/Megatron-LM@83f0eba (AMD's): examples/deepseek_v3/train_deepseekv3.sh
set -e
EXPERIMENT="deepseek_v3"
TIMESTAMP=$(date +%Y%m%d_%H%M%S)
CURRENT_DIR="$( cd "$( dirname "$0" )" && pwd )"
MEGATRON_PATH=$( dirname $( dirname ${CURRENT_DIR}))
export PYTHONPATH=${MEGATRON_PATH}:$PYTHONPATH
NCCL_IB_HCA_LIST=$(rdma link -j | python3 -c "import sys, json; print(json.load(sys.stdin))")
export NCCL_IB_HCA=${NCCL_IB_HCA:-$NCCL_IB_HCA_LIST}
GPUS_PER_NODE=`python3 -c "import torch; print(torch.cuda.device_count())"`
RUN_ENV="${RUN_ENV:-cluster}"
if [ $RUN_ENV = "cluster" ]; then
    MASTER_ADDR=${MASTER_ADDR:-localhost}
    MASTER_PORT=${MASTER_PORT:-$(shuf -n 1 -i 10000-65535)}
    NNODES=${NNODES:-1}
    NODE_RANK=${NODE_RANK:-0}
elif [ $RUN_ENV = "slurm" ]; then
    NNODES=$SLURM_NNODES
    NODE_RANK=${SLURM_NODEID}
fi
gpus=$(seq -s, 0 $((GPUS_PER_NODE - 1)))
export HIP_VISIBLE_DEVICES=$gpus
if [ "${NNODES:-1}" -gt 1 ]; then
    export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-ens51np0}"
else
    echo "Single node setup, skipping NCCL and GLOO socket interface settings."
fi
MODEL_SIZE=${MODEL_SIZE:-16B} # 16B, 236B, 671B.
TOKENIZER_MODEL="deepseek-ai/DeepSeek-V3"
MOCK_DATA="${MOCK_DATA:-1}"
DATA_CACHE_PATH=${DATA_CACHE_PATH:-"../.cache"}
if [ "$MOCK_DATA" -eq 1 ]; then
    data_args="--mock-data --data-cache-path ${DATA_CACHE_PATH}"
else
    data_args="--train-data-path ${DATA_DIR}/mmap_deepseekv3_datasets_text_document \
              "
fi
MICRO_BATCH_SIZE=${MICRO_BATCH_SIZE:-1}
GLOBAL_BATCH_SIZE=${GLOBAL_BATCH_SIZE:-128}
SEQ_LEN="${SEQ_LEN:-4096}"
PR=${PR:-bf16} # bf16, fp16, fp8
TP=${TP:-1}  
ETP=${ETP:-1}
PP=${PP:-1}  
EP="${EP:-1}"  
SP=true
DO=true
FL=true
WINDOW_SIZE=${WINDOW_SIZE:-none}
TRAIN_ITERS=${TRAIN_ITERS:-10}
LR_WARMUP_ITERS=2
LR_DECAY_ITERS=$(( ${TRAIN_ITERS} - ${LR_WARMUP_ITERS}))
if [ "$ETP" -eq 1 ]; then
  if [ "$TP" != "$EP" ] && [ "$TP" -ne 1 ]; then
    echo "Error: TP and EP must be equal when ETP is 1."
    exit 1
  fi
fi
USE_GROUPED_GEMM="${USE_GROUPED_GEMM:-true}"
AC="${AC:-none}" #none #sel #full
export RECOMPUTE_METHOD=${RECOMPUTE_METHOD:-block} # block uniform
export RECOMPUTE_NUM_LAYERS=${RECOMPUTE_NUM_LAYERS:-1}
MOE_PERMUTE_FUSION=${MOE_PERMUTE_FUSION:-false}
if [ -z ${MP_VP} ]; then
    vp_options=""
else
    vp_options=" \
        --num-layers-per-virtual-pipeline-stage ${MP_VP}"
fi
if [ $MODEL_SIZE = 671B ]; then
    HIDDEN_SIZE=7168 # change from 5120 to 7168
    NUM_ATTN_HEADS=128 
    NUM_LAYERS=${NUM_LAYERS:-61} # change from 60 to 61 layers
    INTERMEDIATE_SIZE=18432
    MOE_INTERMEDIATE_SIZE=2048
    NUM_EXPERTS=256
    ROUTER_TOPK=8
    NUM_SHARED_EXPERTS=1
    # MOE_LAYER_FREQ='([0]*1+[1]*2)'  # 3 layer example
    MOE_LAYER_FREQ=1 # use '([0]*3+[1]*58)' for full model
    moe_options=" \
        --q-lora-rank 1536 \
        --moe-router-score-function sigmoid \
        --moe-router-enable-expert-bias \
        --moe-router-bias-update-rate 1e-3
    "
elif [ $MODEL_SIZE = 16B ]; then
    HIDDEN_SIZE=2048
    NUM_ATTN_HEADS=16
    NUM_LAYERS=${NUM_LAYERS:-27}
    INTERMEDIATE_SIZE=10944
    MOE_INTERMEDIATE_SIZE=1408
    NUM_EXPERTS=64
    ROUTER_TOPK=6
    NUM_SHARED_EXPERTS=2
    MOE_LAYER_FREQ=1
    moe_options=" \
        --moe-router-num-groups ${EP} \
        --moe-router-group-topk 1
    "
fi
if [ $MOE_PERMUTE_FUSION != false ]; then
    moe_permute_fustion_options=" \
            --moe-permute-fusion "
else
    moe_permute_fustion_options=""
fi
moe_options=" \
    ${moe_options} \
    --multi-latent-attention \
    --qk-layernorm \
    --moe-ffn-hidden-size ${MOE_INTERMEDIATE_SIZE} \
    --enable-shared-expert \
    --moe-layer-freq '${MOE_LAYER_FREQ}' \
    --num-shared-experts ${NUM_SHARED_EXPERTS} \
    --moe-shared-expert-intermediate-size  $((${NUM_SHARED_EXPERTS} * ${MOE_INTERMEDIATE_SIZE})) \
    --moe-router-load-balancing-type seq_aux_loss\
    --moe-router-topk ${ROUTER_TOPK} \
    ${moe_permute_fustion_options} \
    --num-experts ${NUM_EXPERTS} \
    --moe-token-dispatcher-type alltoall \
    --moe-shared-expert-overlap \
    --expert-model-parallel-size ${EP} \
    --expert-tensor-parallel-size ${ETP} \
    --kv-lora-rank 512 \
    --qk-head-dim 128 \
    --qk-pos-emb-head-dim 64 \
    --v-head-dim 128 \
    --kv-channels 128 "
if [ $WINDOW_SIZE != none ]; then
    moe_options=" \
            ${moe_options} \
            --window-size ${WINDOW_SIZE}"
fi
comm_overlap_option="\
    --overlap-grad-reduce \
    --ddp-bucket-size 629145600 \
    --overlap-param-gather"
if [ $AC = full ]; then
    activation_checkpoint_options=" \
		    --recompute-method ${RECOMPUTE_METHOD} \
		    --recompute-granularity full \
            --recompute-num-layers ${RECOMPUTE_NUM_LAYERS}"
elif [ $AC = sel ]; then
    activation_checkpoint_options=" \
        --recompute-activations"
elif [ $AC = none ]; then
    activation_checkpoint_options=" \
    "
fi
if [ $USE_GROUPED_GEMM = true ]; then
    USE_GROUPED_GEMM_OPTION="--moe-grouped-gemm"
else
    USE_GROUPED_GEMM_OPTION=""
fi
if [ $PR = fp16 ]; then
    pr_options=" \
		    --fp16 \
            --apply-query-key-layer-scaling"
elif [ $PR = bf16 ]; then
    pr_options=" \
        --bf16"
fi
if [ $DO = true ]; then
    do_options=" \
		    --use-distributed-optimizer"
fi
if [ $SP = true ] && [ $TP -gt 1 ]; then
    sp_options=" \
		    --sequence-parallel"
elif [ $SP = false ]; then
    sp_options=" \
                    "
fi
if [ $FL = true ]; then
    flash_options=" \
		    --use-flash-attn"
fi
if [ $PRETRAIN_CHECKPOINT_PATH != none ]; then
    load_options=" \
            --load $PRETRAIN_CHECKPOINT_PATH"
fi
megatron_options="  \
	--no-gradient-accumulation-fusion \
	--no-async-tensor-model-parallel-allreduce \
	${data_args} \
        --attention-dropout 0.0 \
        --hidden-dropout 0.0 \
        --lr-decay-iters ${LR_DECAY_ITERS} \
        --train-iters ${TRAIN_ITERS} \
        --micro-batch-size ${MICRO_BATCH_SIZE} \
        --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --num-layers ${NUM_LAYERS} \
        --hidden-size ${HIDDEN_SIZE} \
        --num-attention-heads ${NUM_ATTN_HEADS} \
        --ffn-hidden-size ${INTERMEDIATE_SIZE} \
        --seq-length ${SEQ_LEN} \
        --max-position-embeddings ${SEQ_LEN} \
        --eval-iters -1 \
        --tensor-model-parallel-size ${TP} \
        --pipeline-model-parallel-size ${PP} \
        --extra-vocab-size 0 \
        --tokenizer-type DeepSeekV3Tokenizer \
        --tokenizer-model ${TOKENIZER_MODEL}\
        --dataset LLama-Pretrain-Idxmap \
        --swiglu \
        --normalization RMSNorm \
        --norm-epsilon 1e-06 \
        --use-rotary-position-embeddings \
        --position-embedding-type rope \
        --untie-embeddings-and-output-weights \
        --disable-bias-linear \
        --rotary-base 10000 \
        --rotary-scaling-factor 40 \
        $USE_GROUPED_GEMM_OPTION \
        --eod-mask-loss 
        "
        # --save ${CHECKPOINT_PATH} \
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK"
run_cmd="torchrun $DISTRIBUTED_ARGS pretrain_deepseek.py
 ${megatron_options} ${pr_options} ${load_options} ${activation_checkpoint_options} \
 ${do_options} ${sp_options} ${vp_options} ${moe_options} ${flash_options} ${comm_overlap_option}"
echo ${run_cmd}
eval ${run_cmd} |& tee log.txt
