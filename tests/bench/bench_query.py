"""How long each named query takes on a run of 100,000 rows, written by the real writers."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from polykv.schemas import RESULTS, SELECTION
from polykv.storage.queries import ask_view
from polykv.storage.results import read_rows
from polykv.storage.views import VIEWS
from tests.report.run_samples import write_run

LAYERS, HEADS, KS, POLICIES = 128, 16, (4, 8, 16, 32, 64, 96, 128, 256), ("int8", "rough", "exact")
# gonogo and certify come from other stages and hold a few rows a layer
ASKED = [name for name, view in VIEWS.items() if set(view.tables) <= {"results", "selection", "controls", "baseline_selection"}]  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = write_run(Path(folder) / "run", layers=range(LAYERS), n_kv_heads=HEADS, policies=POLICIES, ks=KS)
        took = time.perf_counter() - began
        n_rows = len(read_rows(run / "results.parquet", RESULTS))
        n_cells = len(read_rows(run / "selection.parquet", SELECTION))
        size = (run / "results.parquet").stat().st_size / 1e6
        print(f"{n_rows} rows of results ({size:.1f} MB), {n_cells} of selection, written in {took:.0f} s")
        for name in ASKED:
            times = []
            for _ in range(3):
                began = time.perf_counter()
                found = ask_view(run, name, run)
                times.append(time.perf_counter() - began)
            print(f"{name:12} {min(times):6.3f} s best, {max(times):6.3f} s worst of 3, {found.table.num_rows} rows")


if __name__ == "__main__":
    main()
