"""Sweeps on SLURM: scripts, submission, the queue, and what runs inside a job. Knows nothing of models or studies."""
