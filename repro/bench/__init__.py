"""How fast this project is on this machine, beside what a user would take instead. Needs what `repro` needs."""
