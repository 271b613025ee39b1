"""A browser without a window, driven through chromedriver's own protocol (W3C WebDriver): JSON over HTTP."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no chromium with its chromedriver here")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--force-device-scale-factor=1",
)  # fmt: skip
KEYS = {"ArrowRight": "\ue014", "ArrowLeft": "\ue012", "Home": "\ue011", "End": "\ue010", "Escape": "\ue00c", " ": " "}


class Browser:
    """One page at a time; everything it could not do is an error."""

    def __init__(self, profile: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        quiet = subprocess.DEVNULL
        self.driver = subprocess.Popen([str(DRIVER), f"--port={port}"], stdout=quiet, stderr=quiet)
        self.url = f"http://127.0.0.1:{port}"
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        end = time.monotonic() + 60
        while True:
            try:
                made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
                break
            except OSError:
                if time.monotonic() > end:
                    self.driver.kill()
                    raise
                time.sleep(0.1)
        self.url += f"/session/{made['sessionId']}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def size(self, width: int, height: int, dark: bool = False, media: str = "") -> None:
        """Look through a window of this size, smaller ones than a desktop's included."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        for command, parameters in {
            "Emulation.setDeviceMetricsOverride": metrics,
            "Emulation.setEmulatedMedia": {"features": features, "media": media},
        }.items():
            self.command(command, parameters)

    def command(self, name: str, parameters: dict[str, Any]) -> Any:
        """A command of the DevTools protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def open(self, page: Path) -> None:
        self._ask("POST", "/url", {"url": page.resolve().as_uri()})

    def run(self, script: str) -> Any:
        """What an expression is worth in the page."""
        return self._ask("POST", "/execute/sync", {"script": f"return ({script});", "args": []})

    def _element(self, selector: str) -> str:
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        return found[ELEMENT]

    def click(self, selector: str) -> None:
        self._ask("POST", f"/element/{self._element(selector)}/click")

    def choose(self, name: str, value: str) -> None:
        """Choose an option of a select element, as a person does."""
        self.click(f'#{name} option[value="{value}"]')

    def press(self, selector: str, *keys: str) -> None:
        """Focus an element and press keys."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        strokes = [KEYS.get(key, key) for key in keys]
        steps = [{"type": kind, "value": key} for key in strokes for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": steps}]})

    def point(self, selector: str, x: float, y: float, drag: float = 0.0) -> None:
        """Move the mouse to a place in an element, as fractions of its size; drag it from there."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = self.run(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        at = {"x": round(box["x"] + x * box["width"]), "y": round(box["y"] + y * box["height"])}
        steps: list[dict[str, Any]] = [{"type": "pointerMove", "duration": 0, **at}]
        if drag:
            to = {"x": round(at["x"] + drag * box["width"]), "y": at["y"]}
            steps += [{"type": "pointerDown", "button": 0}, {"type": "pointerMove", "duration": 50, **to},
                      {"type": "pointerUp", "button": 0}]  # fmt: skip
        self._ask("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": steps}]})

    def picture(self, path: Path, whole: bool = False) -> None:
        if whole:
            shot = self.command("Page.captureScreenshot", {"captureBeyondViewport": True})["data"]
        else:
            shot = self._ask("GET", "/screenshot")
        path.write_bytes(base64.b64decode(shot))

    def complaints(self) -> list[str]:
        """What the page has complained about in the console so far, refused requests and scripts included."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def close(self) -> None:
        try:
            self._ask("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(10)
