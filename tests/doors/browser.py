"""A Chromium browser and a server with the examples, for the tests of the page."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from kgray.server.page_files import BUILT
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "build" / "page" / "node_modules" / "axe-core" / "axe.min.js"
LAUNCH = ["--no-sandbox", "--disable-dev-shm-usage", "--enable-unsafe-swiftshader"]
NO_WEBGL = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-software-rasterizer"]
ENDS_MS = 15_000  # the longest wait for an event


def missing() -> str:
    """Return the reason why the page cannot be tested; "" if it can."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    if shutil.which("chromium") is None:
        return "there is no Chromium: apt-get install chromium"
    return "" if (BUILT / "index.html").exists() else "the page is not built: make page"


class Tab:
    """A page in the browser, with its errors."""

    def __init__(self, context, url):
        self.url, self.page, self.faults, self.away = url, context.new_page(), [], False
        self.page.set_default_timeout(ENDS_MS)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._listen)
        self.page.on("request", self._check)

    def _listen(self, message):
        expected = self.away or "status of 401" in message.text
        if message.type == "error" and not expected:
            self.faults.append(message.text)

    def _check(self, request):
        if not request.url.startswith((self.url, "blob:", "data:")):
            self.faults.append(f"asked another host: {request.url}")

    def open(self, state="", wait=None):
        """Load a state of the page, and wait for a selector."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/#{state}")
        if wait:
            self.page.wait_for_selector(wait)
        return self.page

    def wait_until(self, expression):
        """Wait until an expression is true; Playwright's own way would need `unsafe-eval` in the page."""
        wait_for(lambda: self.page.evaluate(expression))

    def violations(self):
        """Return the violations that axe-core reports for the page."""
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        reported = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        return [
            (violation["id"], [node["html"][:120] for node in violation["nodes"][:3]])
            for violation in reported
        ]


def skip_where_missing():
    """Skip a module if the page cannot be tested."""
    if why := missing():
        pytest.skip(why, allow_module_level=True)
