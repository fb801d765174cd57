"""A coordinator process for the tests to kill: replay_driver.py RUN STORE ENGINE."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":  # worker processes import this file again
    from replay_world import run_once

    from polykv.execution.engines import Engine

    run_once(Path(sys.argv[1]), Path(sys.argv[2]), Engine.parse(sys.argv[3]))
