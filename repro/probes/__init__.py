"""Experiments on mechanisms: what the paper says of why its model works, measured. Each returns a plain document."""

PROBES_VERSION = 2
"""Raised whenever a probe would measure otherwise than before: documents of an older one are measured again."""
