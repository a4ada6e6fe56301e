"""Directories that belong to one process, and are cleared away once it is dead."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from repro.files import write_json
from repro.runs.processes import Process

OWNER = "owner.json"
"""The file in such a directory that names its process."""


def owned_directory(root: Path, prefix: str) -> Path:
    """A new directory `root/<prefix>...` of this process; those of the same prefix whose owners died are removed."""
    for old in root.glob(f"{prefix}*/{OWNER}"):
        with suppress(OSError, ValueError, KeyError):
            if Process.read(json.loads(old.read_text())).alive() is False:
                shutil.rmtree(old.parent, ignore_errors=True)
    new = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    new.chmod(0o755)
    write_json(new / OWNER, Process.current().document())
    return new
