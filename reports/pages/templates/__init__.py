"""The templates of the report, its style sheet and its script."""

from __future__ import annotations

from pathlib import Path

TEMPLATES = Path(__file__).parent
"""Where they are."""
