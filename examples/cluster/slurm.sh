#!/bin/bash
# Train on the nodes of a Slurm job: sbatch slurm.sh --env-id my_simulator:make --run-dir runs/first
#SBATCH --job-name=hotloop
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=06:00:00
set -euo pipefail

# This command runs on every node and starts Ray there. The head is on the first node, which begins
# to train once all nodes have joined. Ray stops when the training ends.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000)) # differs between jobs, which may share a node
workers=$((SLURM_JOB_NUM_NODES * SLURM_CPUS_PER_TASK - 1)) # one core is for the learner

# Other users of these machines have no access to this Ray.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN

srun ray symmetric-run --address "$head:$port" --min-nodes "$SLURM_JOB_NUM_NODES" \
  --num-cpus "$SLURM_CPUS_PER_TASK" -- \
  hotloop train ppo --workers "$workers" --num-envs "$workers" \
  --backend ray --ray-address "$head:$port" "$@"
