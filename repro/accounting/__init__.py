"""Parameters, FLOPs, memory and the paper's cost method."""
