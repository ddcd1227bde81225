"""A headless Chromium for tests, steered by the DevTools protocol over a pipe (`--remote-debugging-pipe`): the standard
library is enough."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
WRONG = ("Runtime.exceptionThrown", "Log.entryAdded")


class Page:
    """A page in Chromium; `wrong` collects exceptions and what was logged as a warning or an error."""

    def __init__(self, to: IO[bytes], back: IO[bytes]) -> None:
        self._to, self._back = to, back
        self._count, self._session = 0, ""
        self.wrong: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.send(f"{domain}.enable")
        self.send("Performance.enable", timeDomain="threadTicks")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the result of a command."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            found = self._receive()
            if found.get("id") == self._count:
                assert "error" not in found, found
                return dict(found["result"])

    def _receive(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._back.read(1)) != b"\0":
            assert byte, "Chromium has gone"
            text += byte
        found: dict[str, Any] = json.loads(text)
        self._note(found)
        return found

    def _note(self, found: dict[str, Any]) -> None:
        what = found.get("params", {})
        if found.get("method") in WRONG and what.get("entry", {}).get("level") not in ("info", "verbose"):
            self.wrong.append(json.dumps(what))
        if found.get("method") == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.wrong.append(json.dumps(what["args"]))

    def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def busy_seconds(self) -> float:
        """Return how long the page's thread has computed since it was opened, which other work on the machine does not
        change."""
        metrics = self.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

    def run(self, script: str) -> Any:
        """Return what JavaScript comes to, promises kept. Raises AssertionError where it throws."""
        found = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 60.0) -> None:
        """Wait until a condition in JavaScript holds. Raises AssertionError where it never does."""
        script = f"""new Promise((done) => {{
            const end = performance.now() + {seconds * 1e3};
            const look = () => ({condition}) ? done(true) : performance.now() > end ? done(false) : setTimeout(look, 15);
            look(); }})"""
        assert self.run(script), f"never: {condition}; {self.run('document.body.innerText.slice(0, 2000)')}"

    def size(self, width: int, height: int, *, scale: float = 1.0, mobile: bool = False) -> None:
        """Show the page on a screen of so many pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )

    def colours(self, scheme: str) -> None:
        """Prefer the light or the dark colour scheme."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is to be seen as a PNG; the `whole` page, or the part that the screen shows."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def unnamed(self, roles: frozenset[str]) -> list[str]:
        """Return the elements of some roles that a screen reader has no name for."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [
            json.dumps(node)
            for node in nodes
            if not node.get("ignored")
            and node.get("role", {}).get("value") in roles
            and not node.get("name", {}).get("value", "").strip()
        ]


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """Start Chromium with its profile in `folder`, and end it on leaving."""
    assert CHROMIUM is not None, "there is no Chromium"
    theirs_in, to = map(_high, os.pipe())
    back, theirs_out = map(_high, os.pipe())
    quiet = os.open(os.devnull, os.O_WRONLY)
    process = os.posix_spawn(
        CHROMIUM,
        [CHROMIUM, *SWITCHES, f"--user-data-dir={folder / 'profile'}"],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, *pair) for pair in ((quiet, 2), (theirs_in, 3), (theirs_out, 4))],
    )
    for each in (theirs_in, theirs_out, quiet):
        os.close(each)
    try:
        with os.fdopen(to, "wb") as sender, os.fdopen(back, "rb") as receiver:
            page = Page(sender, receiver)
            yield page
            page.send("Browser.close")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
        os.waitpid(process, 0)


def _high(end: int) -> int:
    """Return an end of a pipe out of the way of those that Chromium expects."""
    found = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(end)
    return found
