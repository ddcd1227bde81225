# After a launch of Megatron-DeepSpeed with Open MPI (GPT-2 345M): stored text 19286132627
source .env/bin/activate
export MASTER_ADDR=$(/usr/sbin/ip a show dev bond0 | grep 'inet ' | awk '{ print $2 }' | cut -d "/" -f 1)
export MASTER_PORT=$((10000 + (${JOB_ID} % 50000)))
NUM_NODES=$NHOSTS
NUM_GPUS_PER_NODE=4
NUM_GPUS=$((${NUM_NODES} * ${NUM_GPUS_PER_NODE}))
mkdir -p ./hostfile
HOSTFILE_NAME=./hostfile/hostfile_${JOB_ID}
while read -r hostname _ rest; do
    echo "${hostname} slots=${NUM_GPUS_PER_NODE}"
done <"$PE_HOSTFILE" >"$HOSTFILE_NAME"
# GPT-2 345M (24-layer, 1024-hidden, 16-heads, 345M parameters)
PP_SIZE=1
TP_SIZE=1
DP_SIZE=$((${NUM_GPUS} / (${PP_SIZE} * ${TP_SIZE})))
MICRO_BATCHSIZE=8
GLOBAL_BATCH_SIZE=$((MICRO_BATCHSIZE * DP_SIZE))
CONFIG_FILE=scripts/ds_config_gpt2_345m_${NUM_GPUS}.json
ZERO_STAGE=1
# Run Command
mpirun -np ${NUM_GPUS} \
  --npernode ${NUM_GPUS_PER_NODE} \
  -hostfile ${HOSTFILE_NAME} \
  -x MASTER_PORT=${MASTER_PORT} \
  -x PATH \
  -bind-to none \
  python pretrain_gpt.py \
  --tensor-model-parallel-size ${TP_SIZE} \
  --pipeline-model-parallel-size ${PP_SIZE} \
  --num-layers 24 \
  --hidden-size 1024 \
  --num-attention-heads 16 \
  --micro-batch-size ${MICRO_BATCHSIZE} \
  --global-batch-size ${GLOBAL_BATCH_SIZE} \
  --seq-length 1024 \
  --max-position-embeddings 1024 \
  --train-iters 500000 \
  --vocab-file dataset/gpt2-vocab.json \
  --checkpoint-activations \
  --fp16 \
  --no-masked-softmax-fusion \
  --deepspeed \
  --deepspeed_config ${CONFIG_FILE} \
  --zero-stage ${ZERO_STAGE} \
  --deepspeed-activation-checkpointing \
  --optimizer mvlion \

