#!/bin/bash
#SBATCH --job-name="50% of \"it's\" हिन्दी #1-k7-0"
#SBATCH --comment=k7-0
#SBATCH --array=0-0
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --chdir="/home/ada/my studies/50% \"it's\" हिन्दी #1/jobs"
#SBATCH --output="/home/ada/my studies/50%% \"it's\" हिन्दी #1/jobs/k7-0.%a.log"
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --requeue

# 1 task, from number 0 on: one is done here, of number 0 + SLURM_ARRAY_TASK_ID.
# Signals would end the shell. They count from when Python, which this becomes, passes them on.
trap '' USR1 TERM

export PYTHONPATH='/home/ada/it'"'"'s $HOME/code'"${PYTHONPATH:+:$PYTHONPATH}"
exec /opt/python/bin/python -P -m slurm.batch '/home/ada/my studies/50% "it'"'"'s" हिन्दी #1/jobs/k7-0.job.json'
