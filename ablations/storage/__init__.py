"""Sweeps without a shared disk: what runs need and what they leave behind travels through an object store.

The study stays where the driver is, and stays the truth for everybody who reads it. Under the store's URL lie the
prepared data, a copy of each run directory that is worked on, and the lease of the one driver that may use it.
"""
