#!/bin/bash
# After NVIDIA/Megatron-LM@d086a2e: examples/academic_paper_scripts/sc21/SBATCH.sh
sbatch -p ${SLURM_PARTITION} \
       -A ${SLURM_ACCOUNT} \
       --job-name=${JOB_NAME} \
       --nodes=${NNODES} \
       --export=MEGATRON_CODE_DIR,MEGATRON_PARAMS,DOCKER_MOUNT_DIR nvidia-sc21/SRUN.sh
exit 0
