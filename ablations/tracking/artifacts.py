"""Which files of a run are artifacts in MLflow, and the tag that lists what was stored with its digests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from ablations.tracking.names import LONGEST_TAG
from repro.files import digest_of, digest_of_file

FILES = "ablate.files"
"""The tag that tells which artifacts were stored, with the beginnings of their digests."""
RUN_FILES = ("config.json", "environment.json", "status.json", "metrics.jsonl", "result.json")
HYPOTHESES = ("hypotheses/valid.txt", "hypotheses/test.txt")
CLAIM = re.compile(r"attempts/\d{4,9}\.json")
"""The name of an attempt's file: it tells how a run ended that has no result."""
_SHORT = 12
_DIGEST = re.compile(f"[0-9a-f]{{{_SHORT}}}")


def short_digests(files: Mapping[str, Path]) -> dict[str, str]:
    """The beginnings of the files' SHA-256 by name; files that are gone are left out."""
    found = {}
    for name, path in files.items():
        try:
            found[name] = digest_of_file(path)[:_SHORT]
        except FileNotFoundError:
            continue
    return found


def short_digest(content: bytes) -> str:
    """The same of a file's content."""
    return hashlib.sha256(content).hexdigest()[:_SHORT]


def files_tag(digests: Mapping[str, str]) -> str:
    """The value of the tag FILES: the list of `digests`, or one digest of them where the list is too long."""
    tag = json.dumps(digests, sort_keys=True)
    return tag if len(tag) <= LONGEST_TAG else json.dumps({"all": digest_of(digests)})


def stored_digests(tags: Mapping[str, str]) -> dict[str, str]:
    """The artifacts and their digests as a run's `tags` list them; empty where they do not."""
    try:
        found = json.loads(tags.get(FILES, ""))
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: digest for name, digest in found.items() if _DIGEST.fullmatch(str(digest))}
