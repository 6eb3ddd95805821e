"""Take the README's picture of the page.

    python examples/page_picture.py FOLDER docs/page.png

FOLDER is a data folder of `make demo`. It needs Chromium, playwright, and the built page (`make page`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import ViewportSize, sync_playwright

KGRAY = Path(sys.executable).with_name("kgray")
SIZE: ViewportSize = {"width": 1280, "height": 760}
STATE = {
    "group": "team",
    "centre": "Alice Nguyen",
    "as_of": "2026-02-01",
    "q": "Where does Alice Nguyen work?",
}


def main() -> None:
    """Serve the folder, open the reason for a fact, and keep the picture."""
    folder, picture = sys.argv[1:]
    command = [str(KGRAY), "serve", "--port", "0", "--data", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as driver:
        assert server.stdout is not None  # noqa: S101 - a pipe was asked for
        address = server.stdout.readline().split()[-1]
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--enable-unsafe-swiftshader"]
        )
        page = browser.new_page(viewport=SIZE)
        page.goto(f"{address}/#{urlencode(STATE)}")
        page.click(".hit[data-scope=fact]")
        page.wait_for_selector(".why mark")
        page.wait_for_selector(".graph[data-ready=yes]")
        page.screenshot(path=picture)
        browser.close()
        server.terminate()


if __name__ == "__main__":
    main()
