"""A real browser, headless, through chromedriver's plain HTTP: open, ask, click, point, look."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

DRIVER = shutil.which("chromedriver")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["quic", "gpu", "sync", "background-networking", "component-update", "default-apps", "extensions"]
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # it is on this machine
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # what the WebDriver standard calls a reference to an element


class Chromium:
    def __init__(self, profile: Path) -> None:
        log = profile / "driver.log"
        self.driver = subprocess.Popen(
            [DRIVER, "--port=0", f"--log-path={log}"], stdout=subprocess.PIPE, text=True
        )
        port = next(
            found[1]
            for line in self.driver.stdout
            if (found := re.search(r"successfully on port (\d+)", line))
        )
        self.at = f"http://127.0.0.1:{port}/session"
        flags = ["headless=new", "no-sandbox", "no-first-run", f"user-data-dir={profile / 'profile'}"]
        options = {
            "binary": BROWSER,
            "args": [f"--{flag}" for flag in (*flags, *(f"disable-{x}" for x in QUIET))],
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        self.at += "/" + self.post("", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def post(self, path, body):
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.at + path, data, {"Content-Type": "application/json"})
        with OPEN(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path) -> None:
        self.post("/url", {"url": page.resolve().as_uri()})

    def ask(self, expression: str):
        return self.post("/execute/sync", {"script": f"return {expression}", "args": []})

    def console(self) -> list[str]:
        """What the console has been told since it was last asked."""
        return [entry["message"] for entry in self.post("/se/log", {"type": "browser"})]

    def element(self, selector: str) -> dict[str, str]:
        return self.post("/element", {"using": "css selector", "value": selector})

    def click(self, selector: str) -> None:
        self.post(f"/element/{self.element(selector)[ELEMENT]}/click", {})

    def point(self, selector: str, dx: int = 0, kind: str = "mouse") -> None:
        """Put the pointer on an element, so far to the right of its middle; a finger also touches it."""
        move = {"type": "pointerMove", "origin": self.element(selector), "x": dx, "y": 0}
        touch = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        actions = [move, *(touch if kind == "touch" else [])]
        hand = {"type": "pointer", "id": kind, "parameters": {"pointerType": kind}, "actions": actions}
        self.post("/actions", {"actions": [hand]})

    def drag(self, selector: str, start: int, end: int) -> None:
        """Draw the mouse over an element, from so far from its middle to so far."""
        element = self.element(selector)
        actions = [
            {"type": "pointerMove", "origin": element, "x": start, "y": 0},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerMove", "origin": element, "x": end, "y": 0, "duration": 50},
            {"type": "pointerUp", "button": 0},
        ]
        hand = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}
        self.post("/actions", {"actions": [hand]})

    def press(self, selector: str, key: str) -> None:
        self.post(f"/element/{self.element(selector)[ELEMENT]}/value", {"text": key})

    def look(self, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """The size of the screen, and light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        media = {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
        for command, params in (("setDeviceMetricsOverride", size), ("setEmulatedMedia", media)):
            self.post("/goog/cdp/execute", {"cmd": f"Emulation.{command}", "params": params})
        time.sleep(0.2)  # until it is drawn

    def picture(self, path: Path) -> None:
        """The whole page."""
        shot = {"captureBeyondViewport": True, "format": "png"}
        data = self.post("/goog/cdp/execute", {"cmd": "Page.captureScreenshot", "params": shot})["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        OPEN(urllib.request.Request(self.at, method="DELETE"), timeout=60).close()
        self.driver.terminate()
        self.driver.wait(timeout=30)
        self.driver.stdout.close()
