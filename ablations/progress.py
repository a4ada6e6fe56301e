"""What a user sees while runs run: a live table on a terminal, plain lines elsewhere. All on standard error or output
of the calling process; runs themselves tell of themselves in their directories only."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ablations.status import Look, in_words, look, table
from ablations.study import StudyRun

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

POLL_SECONDS = 2.0
PLAIN_SECONDS = 60.0
"""Between two lines about running runs where there is no terminal."""
