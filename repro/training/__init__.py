"""Optimizer, schedule, loss, checkpoints and the training loop."""
