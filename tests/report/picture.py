"""Take the README's picture: the top of a run's report, as a browser shows it.

python -m tests.report.picture runs/demo data/report.png
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from polykv.report_stages import report_stage
from tests.report.browser import Browser, find_chromium

WIDTH, HEIGHT = 1160, 1230
MAX_BYTES = 300_000


def take(run: str, picture: str) -> None:
    if find_chromium() is None:
        sys.exit("no Chromium is installed (Debian: apt install chromium)")
    with tempfile.TemporaryDirectory() as folder:
        page = report_stage(run, out=Path(folder) / "report.html")
        browser = Browser(Path(folder) / "profile")
        try:
            browser.prefer("light")
            browser.open(page, WIDTH, HEIGHT)
            browser.value("document.getElementById('theme').remove()")
            browser.screenshot(Path(picture), HEIGHT)
        finally:
            browser.close()
    n_bytes = Path(picture).stat().st_size
    print(f"{picture}: {n_bytes} bytes")
    if n_bytes > MAX_BYTES:
        sys.exit(f"{picture} has {n_bytes} bytes, more than {MAX_BYTES}")


if __name__ == "__main__":
    take(*sys.argv[1:])
