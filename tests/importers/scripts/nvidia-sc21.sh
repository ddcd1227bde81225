#!/bin/bash
# After NVIDIA/Megatron-LM@bae83e4: examples/academic_paper_scripts/sc21/run_figure_13.sh, with the files that it sources
# Pipeline-parallel size options = [2, 4, 8, 16, 32].
PP=8
GBS=32
TP=$((64/PP))
MBS=1
NLS=32
HS=20480
NAH=128
DDP=local
MEGATRON_EXTRA_PARAMS="--activations-checkpoint-method uniform --activations-checkpoint-num-layers 1 "
NNODES=8
export JOB_NAME=results_figure_13_pipeline_parallel_size_${PP}_tensor_parallel_size_${TP}_batch_size_${GBS}
# Import the configs.
. nvidia-sc21/CONFIG.sh
# Submit the job.
. nvidia-sc21/SBATCH.sh
exit 0
