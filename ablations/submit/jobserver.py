"""A Ray cluster's job server, at its dashboard's address: hand in a job, look at it, follow what it says, end it.

Whatever goes wrong is one line. Ray is imported when a server is first talked to.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from ablations.nodes import answers
from repro.errors import CheckError, UsageError

EXTRA = "attention-ablations[jobs]"
"""What to install for Ray's job API."""
UPLOAD_LIMIT = 100 * 2**20
"""Bytes that Ray's dashboard takes in one request, and so the largest package."""
OLDEST, NEXT = (2, 60), (3,)
"""The versions of Ray that jobs run with: from the first on, before the second."""

State = Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]

_REQUEST_SECONDS = 60.0
_RETRY_SECONDS = 2.0
_LOST_AFTER = 60.0
"""Seconds without an answer after which following is given up."""
_HEADERS = "RAY_JOB_HEADERS"
"""Environment variable, Ray's own: JSON with headers for a server behind a proxy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A job as its server tells of it."""

    state: State
    message: str = ""
    exit_code: int | None = None
    """The driver's, once it has ended."""

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.state in ("PENDING", "RUNNING")

    @property
    def reason(self) -> str:
        """Why it failed, in one line: the error that `ablate` told last, else the end of Ray's message."""
        if self.state != "FAILED":
            return ""
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        told = [line.removeprefix("ablate: ") for line in lines if line.startswith("ablate: ")]
        return (told or lines or ["no reason was given"])[-1]


def job_address(address: str) -> str:
    """`address` as http://HOST:PORT. Raises UsageError for that of another of Ray's servers, or of none."""
    parts = urlsplit(address)
    fix = "give the job server's, the one of the dashboard: http://HOST:8265"
    if parts.scheme not in ("http", "https"):
        what = "is the address of Ray's client" if parts.scheme == "ray" else "is no address of a job server"
        raise UsageError(what, where=f"--address {address}", fix=fix)
    try:
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:
        named = False
    if not named or parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError("is no address of a job server", where=f"--address {address}", fix=fix)
    return f"{parts.scheme}://{parts.netloc}"


class JobServer:
    """The job server at an address."""

    def __init__(self, address: str) -> None:
        """Raises CheckError when nobody answers, something else does, or its Ray is of another version."""
        self.address = job_address(address)
        parts = urlsplit(self.address)
        if not answers(f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"):
            raise self._silent()
        with self._told():
            self._client = _client_class()(self.address, headers=_headers())
            self.version = str(self._client.server()["ray_version"])
        numbers = tuple(int(part) for part in self.version.split(".")[:2] if part.isdigit())
        if not OLDEST <= numbers < NEXT:
            wanted = f"{OLDEST[0]}.{OLDEST[1]} to below {NEXT[0]}"
            raise CheckError(f"runs Ray {self.version}, wanted is {wanted}", where=self._where, fix="start such a one")

    def submit(
        self, token: str, entrypoint: str, package: Path, environment: Mapping[str, str], about: Mapping[str, str]
    ) -> None:
        """Hand in a job under the id `token`: `entrypoint` is run where the zip file `package` was unpacked.

        After this the server has the job, or CheckError is raised and it has not, as far as it answers.
        """
        try:
            with self._told():
                self._client.submit_job(
                    entrypoint=entrypoint,
                    submission_id=token,
                    runtime_env={"working_dir": str(package), "env_vars": dict(environment)},
                    metadata=dict(about),
                )
        except CheckError:
            if self._took(token):
                return  # the answer was lost, the job was not
            raise

    def look(self, token: str) -> Job | None:
        """The job with the id `token`; None when the server knows none, as after its cluster was started anew."""
        with self._told():
            document = self._client.job(token)
        if document is None:
            return None
        return Job(
            state=document["status"],
            message=document.get("message") or "",
            exit_code=document.get("driver_exit_code"),
        )

    def stop(self, token: str) -> None:
        """Tell the job to end; it saves what it can."""
        with self._told():
            self._client.stop_job(token)

    def follow(self, token: str, write: Callable[[str], object]) -> Job | None:
        """Write what the job says, from its beginning, until it has ended; how it ended, None when it is gone.

        Raises CheckError when the server has not answered for a minute. The job is not touched by that.
        """
        shown, heard = 0, time.monotonic()
        while True:
            try:
                shown = asyncio.run(self._tail(token, shown, write))
                job = self.look(token)
                if job is None or not job.live:
                    return job
                heard = time.monotonic()
            except (CheckError, RuntimeError, OSError) as error:
                if time.monotonic() - heard > _LOST_AFTER:
                    raise error if isinstance(error, CheckError) else self._silent() from error
            time.sleep(_RETRY_SECONDS)

    async def _tail(self, token: str, shown: int, write: Callable[[str], object]) -> int:
        """Write what was not shown yet, for as long as the server keeps the line; how many characters are shown now."""
        passed = 0
        try:
            async for text in self._client.tail_job_logs(token):
                new = text[max(0, shown - passed) :]
                passed += len(text)
                if new:
                    write(new)
        except Exception as error:  # aiohttp's, of many kinds
            if passed <= shown:
                raise RuntimeError(str(error)) from error
        return max(shown, passed)

    def _took(self, token: str) -> bool:
        try:
            return self.look(token) is not None
        except CheckError:
            return False

    @property
    def _where(self) -> str:
        return f"--address {self.address}"

    def _silent(self) -> CheckError:
        fix = "start a Ray with its dashboard there (pip install 'ray[default]'), or forward its port to here"
        return CheckError("no job server answers", where=self._where, fix=fix)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What Ray's client raises, as one line."""
        import requests
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            fix = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the cluster's"
            raise CheckError("the cluster wants a token, or another one", where=self._where, fix=fix) from error
        except (ConnectionError, requests.ConnectionError, requests.Timeout) as error:
            raise self._silent() from error
        except (requests.RequestException, KeyError, TypeError, json.JSONDecodeError) as error:
            fix = "give the address of Ray's dashboard: http://HOST:8265"
            raise CheckError("is no job server of Ray", where=self._where, fix=fix) from error
        except (RuntimeError, ValueError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            told = (lines or [type(error).__name__])[-1][:300]
            raise CheckError(f"the job server refuses ({told})", where=self._where) from error


@functools.cache
def _client_class() -> Any:
    """Ray's client with a limit on the time of each request. Raises CheckError where Ray's job API is not installed."""
    _set_mode()
    try:
        import aiohttp  # noqa: F401 - what Ray's client lacks where only ray[tune] is installed
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        fix = f"pip install '{EXTRA}'"
        raise CheckError(f"Ray's job API is not installed ({error.name} is missing)", fix=fix) from error
    for module in ("dashboard_sdk", "job.sdk"):  # what they tell of uploads and sockets says nothing to a user
        logging.getLogger(f"ray.dashboard.modules.{module}").setLevel(logging.ERROR)

    class Client(JobSubmissionClient):  # type: ignore[misc]
        def __init__(self, address: str, headers: dict[str, Any] | None) -> None:
            # These would be taken before the address that is given here.
            kept = {name: os.environ.pop(name, None) for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")}
            try:
                super().__init__(address, headers=headers)
            finally:
                os.environ.update({name: value for name, value in kept.items() if value is not None})

        def _do_request(self, *arguments: Any, **options: Any) -> Any:
            return super()._do_request(*arguments, **{"timeout": _REQUEST_SECONDS} | options)

        def server(self) -> dict[str, Any]:
            answer = self._do_request("GET", "/api/version")
            answer.raise_for_status()
            return dict(answer.json())

        def job(self, token: str) -> dict[str, Any] | None:
            answer = self._do_request("GET", f"/api/jobs/{token}")
            if answer.status_code == 404:
                return None
            answer.raise_for_status()
            return dict(answer.json())

    return Client


def _set_mode() -> None:
    """Whether this process shows a token: Ray reads this once, when it is imported."""
    secured = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    os.environ.setdefault("RAY_AUTH_MODE", "token" if secured else "disabled")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def _headers() -> dict[str, Any] | None:
    text = os.environ.get(_HEADERS)
    if not text:
        return None
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise UsageError("is no JSON object", where=f"${_HEADERS}", fix='write {"Authorization": "..."}') from error
