#!/bin/bash
# sbatch docs/examples/slurm.sh config.yaml /shared/parts /shared/runs/first
#SBATCH --job-name=weft
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

config=$1 parts=$2 run=$3
workers_per_node=${WORKERS_PER_NODE:-4}

# The interface that rows travel on; name it where the default route is not the fast network.
export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$(ip route show default | awk 'NR == 1 {print $5}')}
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / workers_per_node)) THP_MEM_ALLOC_ENABLE=1

torchrun=(torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$workers_per_node" --shutdown-timeout 100
    --master-addr "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | awk 'NR == 1')"
    --master-port "$((20000 + SLURM_JOB_ID % 20000))")
weft=(weft train "$config" --data "$parts" --run "$run" --resume) # from the start where there is no checkpoint yet

code=0
# Every node runs the same command with its own number.
srun --kill-on-bad-exit=1 bash -c '"${@/NODE/$SLURM_NODEID}"' _ "${torchrun[@]}" --node-rank NODE -m -- "${weft[@]}" ||
    code=$?

# The signal before the time limit came and the checkpoint is written: go on in a new allocation.
if [ "$code" -ne 0 ] && grep -qs '"status": "interrupted"' "$run/summary.json"; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
