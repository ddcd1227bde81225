#!/bin/bash
# After swiss-ai/Megatron-LM@0e57e5e: submit-llama3-70b.sh
#SBATCH --account=a-a06
#SBATCH --job-name=llama-70b
#SBATCH --nodes=32
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=288
#SBATCH --no-requeue	# Prevent Slurm to requeue the job if the execution crashes
echo "START TIME: $(date)"
DATASETS="/capstor/datasets/fineweb-edu"
MBS=1 # Micro batch size
GBS=1024 # Global batch size
SEQ_LEN=8192 # Sequence length 
TRAINING_STEPS=500
LOG_NCCL=false # Log NCCL_DEBUG=info.
NSYS_PROFILER=false # Turn on the NSYS profiler
MOCK_DATA=false # Set to `true` to use mock data
MEGATRON_LM_DIR=/iopsstor/scratch/cscs/$USER/Megatron-LM
BACKUP_CODEBASE=false # Set to `true` to copy the codebase
EXP_NAME=llama3-8b-$SLURM_NNODES-nodes
EXP_DIR=$MEGATRON_LM_DIR/logs/$EXP_NAME
CKPT_DIR=$EXP_DIR/checkpoints
DEBUG_DIR=$EXP_DIR/debug/$SLURM_JOB_ID
GPU_MEM_LOGGING=memory_logging.txt
MASTER_ADDR=$(hostname)
MASTER_PORT=25678
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK/SLURM_GPUS_PER_NODE))
ulimit -c 0
TRANSFORMER_ENGINE_ARGS=(
	--transformer-impl transformer_engine
	--use-precision-aware-optimizer
	--main-grads-dtype bf16
)
NETWORK_SIZE_ARGS=(
	--num-layers 80
	--hidden-size 8192
	--ffn-hidden-size 28672
	--num-attention-heads 64
	--group-query-attention
	--num-query-groups 8
	--max-position-embeddings $SEQ_LEN
	--position-embedding-type rope
	--rotary-base 500000
	--use-rope-scaling
	--rope-scaling-factor 8
	--make-vocab-size-divisible-by 128
	--normalization RMSNorm
	--swiglu
	--untie-embeddings-and-output-weights
)
REGULARIZATION_ARGS=(
	--attention-dropout 0.0
	--hidden-dropout 0.0
	--weight-decay 0.1
)
TRAINING_ARGS=(
	--micro-batch-size $MBS
	--global-batch-size $GBS
	--no-check-for-nan-in-loss-and-grad
	--train-iters $TRAINING_STEPS
	--cross-entropy-loss-fusion
	--disable-bias-linear
	--optimizer adam
	--manual-gc
	--manual-gc-interval 50
)
DISTRIBUTED_ARGS=(
	--tensor-model-parallel-size $SLURM_GPUS_PER_NODE
	--sequence-parallel
	--pipeline-model-parallel-size 8
	--num-layers-per-virtual-pipeline-stage 5
	--context-parallel-size 1
	--use-distributed-optimizer
    --overlap-grad-reduce
	--overlap-param-gather
	--defer-embedding-wgrad-compute
	--wgrad-deferral-limit 22
	--overlap-p2p-communication-warmup-flush
)
TOKENIZER_ARGS=(
	--tokenizer-type HuggingFaceTokenizer
	--tokenizer-model tj-solergibert/swai
)
DATA_ARGS=(
	--split 100,0,0
	--seq-length $SEQ_LEN
	--num-workers 1
)
mkdir -p $CKPT_DIR
srun -l bash -c 'echo $(hostname) $(nvidia-smi | grep -o "|\\s*[0-9]*MiB")' > $GPU_MEM_LOGGING
if [ "$BACKUP_CODEBASE" == true ]; then
  if [ -z "$(ls -A "$BACKUP_CODEBASE_DIR")" ]; then
  	rsync -av $MEGATRON_LM_DIR/ $BACKUP_CODEBASE_DIR/ &> /dev/null
  fi
  MEGATRON_LM_DIR=$BACKUP_CODEBASE_DIR
fi
cd $MEGATRON_LM_DIR
export PYTHONPATH=$MEGATRON_LM_DIR:$PYTHONPATH
if [ "$MOCK_DATA" = true ]; then
  DATA_ARGS="${DATA_ARGS[@]} --mock-data"
else
  DATA_ARGS="${DATA_ARGS[@]} --data-path $(python3 $MEGATRON_LM_DIR/scripts/tools/create_data_config.py -p $DATASETS) --data-cache-path cache"
fi
TORCHRUN_ARGS=(
    --nproc-per-node $SLURM_GPUS_PER_NODE
	--nnodes $SLURM_NNODES
	--rdzv_endpoint $MASTER_ADDR:$MASTER_PORT
	--rdzv_backend c10d
	--max_restarts 0
)
CMD_PREFIX="numactl --membind=0-3"
TRAINING_CMD="torchrun ${TORCHRUN_ARGS[@]} $MEGATRON_LM_DIR/pretrain_gpt.py \
    ${TRANSFORMER_ENGINE_ARGS[@]} \
    ${NETWORK_SIZE_ARGS[@]} \
    ${REGULARIZATION_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    --save $CKPT_DIR --bf16 \
    ${DISTRIBUTED_ARGS[@]} \
    ${TOKENIZER_ARGS[@]} \
    $DATA_ARGS"
if [ -n "$WANDB_API_KEY" ]; then
  if [ -d "$EXP_DIR/wandb/latest-run" ]; then
    wandb sync "$EXP_DIR/wandb/latest-run"
  fi
  TRAINING_CMD="$TRAINING_CMD \
    --wandb-exp-name $EXP_NAME-$SLURM_JOB_ID"
else
  export WANDB_MODE=disabled
fi
if [ "$LOG_NCCL" = true ]; then
  CMD_PREFIX="NCCL_DEBUG=INFO NCCL_DEBUG_FILE=$DEBUG_DIR/nccl-info-procid-\$SLURM_PROCID.txt $CMD_PREFIX"
fi
if [ "$NSYS_PROFILER" = true ]; then
    TRAINING_CMD="nsys profile -s none --trace='nvtx,cuda' $TRAINING_CMD --profile"
fi
printf '=%.0s' {1..100} >> environment.txt
echo -e "\nCMD: $CMD_PREFIX $TRAINING_CMD" >> environment.txt
srun -lu --cpus-per-task $SLURM_CPUS_PER_TASK --wait 60 bash -c "$CMD_PREFIX $TRAINING_CMD"
JOB_EXIT_CODE=$?
if [ $JOB_EXIT_CODE -ne 0 ]; then
    echo "[$(date)] Job failed with exit code $JOB_EXIT_CODE. Running error analysis..."
fi
