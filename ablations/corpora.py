"""Corpora as the commands see them: known, prepared, described."""

from __future__ import annotations
