"""The user's proof that an installation is faithful: claims with what the paper or an independent count expects."""

from repro.verify.check import Check, Claim

__all__ = ["Check", "Claim"]
