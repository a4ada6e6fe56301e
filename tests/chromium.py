"""A headless Chromium for tests of pages, spoken to by its DevTools protocol."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

_ERRORS = {
    "Runtime.exceptionThrown": lambda told: told["exceptionDetails"],
    "Log.entryAdded": lambda told: told["entry"] if told["entry"]["level"] == "error" else None,
    "Runtime.consoleAPICalled": lambda told: told if told["type"] in ("error", "assert") else None,
}
"""Events that tell of an error, and what of them does; None when they tell of something else."""


class Tab:
    """One page of the browser."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._number = connection, 0
        self.errors: list[Any] = []
        """What went wrong in the pages opened so far: exceptions, failed requests, errors on the console."""
        self._loaded = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of one method of the protocol."""
        self._number += 1
        await self._connection.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            answer = await self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    async def open(self, url: str) -> None:
        """Go to `url` and wait until it is loaded."""
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        before = self._loaded
        await self.call("Page.navigate", url=url)
        while self._loaded == before:
            await self._message()

    async def value(self, expression: str) -> Any:
        """What a JavaScript `expression` comes to."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def text(self) -> str:
        """All that is visible."""
        return str(await self.value("document.body ? document.body.innerText : ''"))

    async def size(self, width: int, height: int) -> None:
        """Show the page in a window of this size, in pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def _message(self) -> dict[str, Any]:
        received = await self._connection.receive()
        assert isinstance(received.data, str), "the browser hung up"
        message: dict[str, Any] = json.loads(received.data)
        method = message.get("method", "")
        self._loaded += method == "Page.loadEventFired"
        if method in _ERRORS and (told := _ERRORS[method](message["params"])) is not None:
            self.errors.append(told)
        return message


@asynccontextmanager
async def browser_tab() -> AsyncIterator[Tab]:
    """A tab of a browser of its own."""
    import aiohttp

    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert browser, "this test looks at pages in Chromium: install it (Debian: apt-get install chromium)"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "--window-size=2600,1400", "about:blank"]
        process = await asyncio.create_subprocess_exec(
            browser, *flags, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            port = await _devtools_port(Path(profile))
            async with aiohttp.ClientSession() as session:
                tabs = await (await session.get(f"http://127.0.0.1:{port}/json")).json()
                address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
                async with session.ws_connect(address, max_msg_size=0) as connection:
                    yield Tab(connection)
        finally:
            process.terminate()
            await process.wait()


async def _devtools_port(profile: Path) -> int:
    path = profile / "DevToolsActivePort"
    for _ in range(1200):
        if path.exists() and "\n" in (text := path.read_text()):
            return int(text.split()[0])
        await asyncio.sleep(0.1)
    raise AssertionError("the browser did not start")
