#!/bin/bash
#SBATCH --job-name=heads-k7-0
#SBATCH --comment=k7-0
#SBATCH --array=0-0
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=6
#SBATCH --gres=gpu:8
#SBATCH --chdir=/home/ada/studies/heads/jobs
#SBATCH --output=/home/ada/studies/heads/jobs/k7-0.%a.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --requeue

# 1 task, from number 0 on: one is done here, of number 0 + SLURM_ARRAY_TASK_ID.
# Signals would end the shell. They count from when Python, which this becomes, passes them on.
trap '' USR1 TERM

export PYTHONPATH=/home/ada/studies/heads/code/3f9a1b2c4d5e"${PYTHONPATH:+:$PYTHONPATH}"
exec /opt/python/bin/python -P -m slurm.batch /home/ada/studies/heads/jobs/k7-0.job.json
