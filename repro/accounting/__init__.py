"""What a model costs: parameters, FLOPs, memory and the peaks of devices. Nothing here imports torch at load time."""
