"""A headless Chromium that opens a file, reports what goes wrong on the page, and answers questions about it."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_SECONDS = 180
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
)  # fmt: skip


def find_chromium() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of one browser. `problems` are console errors, exceptions, refused and attempted network requests."""

    def __init__(self, profile: Path) -> None:
        self.problems: list[str] = []
        self._numbers = itertools.count(1)
        self._process = subprocess.Popen(
            [find_chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._socket = connect(self._address(profile), max_size=None, open_timeout=PATIENCE_SECONDS)
        except BaseException:
            self.close()
            raise
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def open(self, path: Path, width: int = 1160, height: int = 900) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url=path.as_uri())
        self._until(
            lambda: self.value("document.readyState") == "complete" and self.value("location.protocol") == "file:"
        )

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is on the page."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def prefer(self, scheme: str, media: str = "") -> None:
        """Emulate light or dark, screen or print."""
        self.ask(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        # the page hears of it with the next frame
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def hover(self, selector: str) -> None:
        box = self.value(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            " const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()"
        )
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """The page (its first `height` pixels) as PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            told = json.loads(self._socket.recv(timeout=PATIENCE_SECONDS))
            if told.get("id") == number:
                if "error" in told:
                    raise AssertionError(f"{method}: {told['error']}")
                return told["result"]
            self._note(told)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=PATIENCE_SECONDS)

    def _note(self, told: dict[str, Any]) -> None:
        method, params = told["method"], told["params"]
        if method == "Runtime.exceptionThrown":
            self.problems.append(f"exception: {params['exceptionDetails']}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(f"console {params['type']}: {params['args']}")
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"log: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
            ("file:", "data:", "about:")
        ):
            self.problems.append(f"request: {params['request']['url']}")

    def _address(self, profile: Path) -> str:
        noted = profile / "DevToolsActivePort"
        self._until(lambda: noted.is_file() and noted.read_text().count("\n") >= 1)
        port = noted.read_text().split("\n")[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=PATIENCE_SECONDS) as answer:
            pages = json.loads(answer.read())
        return next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")

    def _until(self, holds: Any) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"the browser did not answer within {PATIENCE_SECONDS} s")
            time.sleep(0.05)
