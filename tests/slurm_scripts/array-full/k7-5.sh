#!/bin/bash -l
#SBATCH --job-name=heads-k7-5
#SBATCH --comment=k7-5
#SBATCH --array=0-4%3
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gres=gpu:a100:1
#SBATCH --partition=gpu
#SBATCH --account=nlp-2026
#SBATCH --qos=normal
#SBATCH --constraint="a100&ib"
#SBATCH --reservation=course
#SBATCH --time=1-12:00:00
#SBATCH --mem=64G
#SBATCH --exclude=gpu[07-08]
#SBATCH --mail-type="END,FAIL"
#SBATCH --chdir=/home/ada/studies/heads/jobs
#SBATCH --output=/home/ada/studies/heads/jobs/k7-5.%a.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
#SBATCH --no-requeue

# 5 tasks, from number 5 on: one is done here, of number 5 + SLURM_ARRAY_TASK_ID.
# Signals would end the shell. They count from when Python, which this becomes, passes them on.
trap '' USR1 TERM

set -e
trap 'echo "slurm: set-up failed with exit code $?: $BASH_COMMAND" >&2' ERR
module load cuda/12.4
module load gcc
export HF_HOME=/scratch/hf
ulimit -n 65536

export PYTHONPATH=/home/ada/studies/heads/code/3f9a1b2c4d5e"${PYTHONPATH:+:$PYTHONPATH}"
exec /opt/python/bin/python -P -m slurm.batch /home/ada/studies/heads/jobs/k7-5.job.json
