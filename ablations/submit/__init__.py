"""Studies handed to others: queued on SLURM or given to a Ray cluster, frozen as they are at that moment."""
