#!/bin/bash
#SBATCH --job-name=shardwright --nodes=4 --ntasks-per-node=1 --gpus-per-node=8 --exclusive
#SBATCH --signal=TERM@120 --requeue --no-kill
# sbatch examples/elastic/slurm.sh plan.json corpus.bin s3://bucket/run [OPTION ...]
# One keeper a node; srun hands them the run's secret in their environment. A node that fails does not end the job (--no-kill); TERM comes 120 s before the time limit.
PORT=29400
SHARDWRIGHT_SECRET=${SHARDWRIGHT_SECRET:-$(od -vAn -N32 -tx1 /dev/urandom | tr -d ' \n')}
JOIN=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/$/:$PORT/" | paste -sd,)
export SHARDWRIGHT_SECRET PORT JOIN PLAN=$1 DATA=$2 UPLOAD=$3
srun --kill-on-bad-exit=0 --wait=0 bash -c 'exec shardwright train "$PLAN" --data "$DATA" --elastic --upload "$UPLOAD" \
    --name "$(hostname)" --listen "$(hostname):$PORT" --join "$JOIN" --out "/tmp/shardwright-$SLURM_JOB_ID" "$@"' \
    keeper "${@:4}"
