"""Pages on mechanisms: what probes measured, as plots, tables and words that are made from the numbers."""
