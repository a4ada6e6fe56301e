"""`python -m ablations`: the same as `ablate`."""

from __future__ import annotations

from ablations.cli import main

main()
