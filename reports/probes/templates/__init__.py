"""The templates of the pages on mechanisms."""

from __future__ import annotations

from pathlib import Path

TEMPLATES = Path(__file__).parent
"""Where they are."""
