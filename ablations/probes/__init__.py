"""Probes of mechanisms: what each needs trained, and how a study of them is brought to its documents."""
