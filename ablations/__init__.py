"""Studies, Ray Tune, MLflow and the `ablate` command line."""
