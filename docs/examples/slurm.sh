#!/bin/bash
#SBATCH --job-name=weft-first
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=65536M
#SBATCH --time=0-04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/runs/first-%j.log
set -euo pipefail

run=/shared/runs/first
cat > "$run.yaml" <<'END_OF_SETTINGS'
data: /shared/parts
run: /shared/runs/first
model:
  name: sage
  hidden: 256
strategy: sar
workers: 8
threads: 4
train:
  epochs: 200
END_OF_SETTINGS

# The interface that rows travel on; name it where the default route is not the fast network.
export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$(ip route show default | awk 'NR == 1 {print $5}')}
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-$GLOO_SOCKET_IFNAME}
export OMP_NUM_THREADS=4 THP_MEM_ALLOC_ENABLE=1

# Which summary lies there: one that was there before says nothing of how the workers end now.
summary() { stat -c '%i %Y %s' "$run/summary.json" 2> /dev/null || true; }
before=$(summary)

# Every node runs the same command; torchrun reads its number from PET_NODE_RANK.
torchrun=(torchrun --nnodes=2 --nproc-per-node=4 --shutdown-timeout=100
    --master-addr="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | awk 'NR == 1')"
    --master-port="$((20000 + SLURM_JOB_ID % 10000))")
weft=(weft train "$run.yaml" --resume) # from the start where there is no checkpoint yet
code=0
srun --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash -c 'PET_NODE_RANK=$SLURM_NODEID exec "$@"' _ "${torchrun[@]}" -m -- "${weft[@]}" || code=$?

# The signal before the time limit came and the checkpoint is written: go on in a new allocation. (A job that is
# cancelled does not come here: Slurm signals this script, too, which ends it.)
if [ "$code" -ne 0 ] && [ "$(summary)" != "$before" ] &&
    grep -qs '"status": "interrupted"' "$run/summary.json"; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
