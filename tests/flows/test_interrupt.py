"""Ctrl-C in the middle of a replay, as a command and as a flow: it stops, keeps what is done, and says how to go on."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from tests.tiny_store import write_tiny_store

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("tell", [os.killpg, os.kill], ids=["terminal", "process-alone"])
@pytest.mark.parametrize("module", [["polykv", "replay"], ["flows.replay"]], ids=["command", "flow"])
@pytest.mark.parametrize("engine", [["--serial"], ["--workers", "2"]], ids=["serial", "local"])
def test_ctrl_c_keeps_what_is_done(module, engine, tell, tmp_path):
    store = write_tiny_store(tmp_path / "store", layers=tuple(range(24)))
    run = tmp_path / "run"
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    process = subprocess.Popen(
        [sys.executable, "-m", *module, store, "--out", str(run), "--policy", "two_tier,int8,reference,exact", *engine],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment,
    )  # fmt: skip
    try:
        end = time.monotonic() + 180
        while not (run / "parts").is_dir() or len(list((run / "parts").iterdir())) < 5:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.05)
        tell(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=300)  # ends when the last process that holds stderr does
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, said
    assert "run the same command again" in said
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    assert not (run / "results.parquet").exists()
