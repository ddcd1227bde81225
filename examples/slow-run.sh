# An 8B model on four machines, as someone might start it: full recomputation, tensor parallelism of 4.
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
    --ffn-hidden-size 14336 --swiglu --untie-embeddings-and-output-weights --normalization RMSNorm \
    --position-embedding-type rope --disable-bias-linear --vocab-size 128256 \
    --seq-length 4096 --max-position-embeddings 4096 --bf16 --use-flash-attn \
    --micro-batch-size 1 --global-batch-size 128 \
    --tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 2 \
    --use-distributed-optimizer \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
