"""Run directories: the truth about every run."""
