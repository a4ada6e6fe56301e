"""What published records tell of machines and people: what computed, but no names of hosts, users, jobs or places."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from repro.data.corpora import corpus

Document = dict[str, Any]

_ALIAS = re.compile(r"machine-[1-9]\d*")
_URL = re.compile(r"\b([A-Za-z][\w+.-]*)://[^\s'\"<>]+")
_ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]\d)")
_ACCOUNT = re.compile(r"(?<![\w…])[\w.+-]+@(?=[\w…])")
_QUOTED = re.compile(r"(['\"])(?:~[\w.-]*|\.\.?)?(/[^'\"\n]+)\1")
_PATH = re.compile(r"(?:(?<![\w.…~/])|(?<=(?<!\w)-[A-Za-z]))(?:~[\w.-]*|\.\.?)?(/[A-Za-z_][^\s:,;()'\"<>]*)")
_FILE = re.compile(r".*/([\w.-]+\.(?:db|jsonl?|lock|model|py|safetensors|so|txt))")
"""The files of which the name is told; the names of directories can be those of people."""
_PID = re.compile(r"\bpid \d+")
_PLAN = (
    *("schema", "study", "table", "kind", "scale", "seeds", "profile", "set", "data", "created", "version"),
    *("semantics", "base", "search", "variants", "runs", "superseded", "history"),
)
_ENVIRONMENT = (
    *("schema", "python", "platform", "host", "cpu", "cores", "versions", "code", "device", "threads", "attempt"),
    "processes",
)
"""The keys that are kept; those that later versions may add are not known to be harmless."""


def place_in_root(data: Mapping[str, Any]) -> Path:
    """Where the prepared corpus `data` ("corpus", "vocabulary_size", "digest") lies in a directory of corpora.

    Raises UsageError for an unknown corpus.
    """
    return Path(corpus(data["corpus"]).directory_name, f"{data['vocabulary_size']}-{data['digest'][:12]}")


def usual_place(data: Mapping[str, Any]) -> str:
    """Where it lies when nobody says otherwise, relative to the working directory."""
    return f"data/{place_in_root(data).as_posix()}"


class Discreet:
    """Documents of a study without what a stranger should not see. What it made already it leaves as it is."""

    def __init__(self, hosts: Iterable[str], data: Mapping[str, Any]) -> None:
        """`hosts`: of all records, in the plan's order; each becomes "machine-N". `data`: as study.json has it."""
        known = list(dict.fromkeys(host for host in hosts if host))
        taken = {host for host in known if _ALIAS.fullmatch(host)}
        free = (name for number in range(1, 2 * len(known) + 2) if (name := f"machine-{number}") not in taken)
        self._hosts = {host: host if host in taken else next(free) for host in known}
        short = {host.partition(".")[0]: alias for host, alias in self._hosts.items() if host[:1].isalpha()}
        self._names = sorted((short | self._hosts).items(), key=lambda pair: -len(pair[0]))
        self._data = usual_place(data)

    def plan(self, document: Document) -> Document:
        """study.json; corpora lie in their usual place."""
        kept = {key: document[key] for key in _PLAN if key in document}
        kept["data"] = kept["data"] | {"directory": self._data}
        if "history" in kept:
            kept["history"] = [_earlier(entry) for entry in kept["history"]]
        return kept

    def config(self, document: Document) -> Document:
        """config.json of a run."""
        return document | {"data_directory": self._data}

    def environment(self, document: Document) -> Document:
        """environment.json of a run."""
        kept = {key: document[key] for key in _ENVIRONMENT if key in document} | {"slurm": {}}
        return kept | ({"host": self._host(kept["host"])} if "host" in kept else {})

    def status(self, document: Document) -> Document:
        """status.json of a run."""
        reason = self._text(str(document.get("reason", "")))
        return document | {"host": self._host(document.get("host")), "pid": 0, "reason": reason}

    def claim(self, document: Document) -> Document:
        """An attempt at a run: when it began, how it ended, on which machine."""
        owner = document.get("owner")
        host = self._host(owner.get("host")) if isinstance(owner, dict) else ""
        kept = document | {"by": {}, "owner": {"host": host, "boot_id": "", "namespace": "", "pid": 0, "start": ""}}
        if isinstance(document.get("ended"), dict):
            kept["ended"] = document["ended"] | {"reason": self._text(str(document["ended"].get("reason", "")))}
        return kept

    def _host(self, host: Any) -> str:
        return self._hosts.get(str(host or ""), "")

    def _text(self, text: str) -> str:
        text = _ADDRESS.sub("…", _URL.sub(r"\1://…", _ACCOUNT.sub("…@", text)))
        text = _PATH.sub(_shortened, _QUOTED.sub(_shortened, _PID.sub("pid 0", text)))
        for name, alias in self._names:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?:\.[\w-]+)*(?![\w-])", alias, text)
        return text


def _shortened(found: re.Match[str]) -> str:
    """A path without its directories, in the quotes that it had."""
    *quote, path = found.groups()
    file = _FILE.fullmatch(path)
    return (f"…/{file[1]}" if file else "…").join(quote * 2 or ("", ""))


def _earlier(entry: Document) -> Document:
    """What the study was before, with that corpus in its usual place."""
    data = entry.get("data")
    return entry | {"data": data | {"directory": usual_place(data)}} if isinstance(data, dict) else entry
