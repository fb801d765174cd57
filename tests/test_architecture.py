"""The rooms keep to their walls; and the test that says so can fail."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.architecture_rules import MAY_IMPORT, ONLY_IN, violations

ROOT = Path(__file__).resolve().parents[1]
# spelled in pieces, so that this file does not hold what it looks for
MACHINE = re.compile(
    rb"/(?:wo" + rb"rk|ro" + rb"ot|ho" + rb"me|t" + rb"mp)/[A-Za-z0-9_.]|pypi\.o" + rb"rg|python" + rb"hosted"
)


def test_every_module_keeps_the_rules():
    assert violations(ROOT) == []


def test_the_rules_name_every_room_there_is():
    rooms = {p.stem for p in (ROOT / "polykv").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - set(MAY_IMPORT) == set()


def test_arrows_run_one_way():
    """No two rooms may import each other (the base nouns, one small family, aside)."""
    base = MAY_IMPORT["errors"]
    both = {
        (a, b) for a in MAY_IMPORT for b in MAY_IMPORT[a] if a < b and a in MAY_IMPORT.get(b, ()) and not {a, b} <= base
    }
    assert both == set()


PLANTED = {
    "arrow the wrong way": (
        "polykv/storage/x.py",
        "from polykv.replay.gates import judge",
        "storage imports polykv.replay",
    ),
    "room by name": ("polykv/codecs/x.py", "from polykv import storage", "codecs imports polykv.storage"),
    "relative import": ("polykv/capture/x.py", "from ..replay import sweep", "capture imports polykv.replay"),
    "relative package": ("polykv/capture/x.py", "from .. import pool", "capture imports polykv.pool"),
    "import in a function": ("polykv/types.py", "def f():\n    import polykv.pool", "types imports polykv.pool"),
    "import by string": (
        "polykv/pool.py",
        "import importlib\nimportlib.import_module('polykv.cli')",
        "pool imports polykv.cli",
    ),
    "flows in a room": ("polykv/stages.py", "import flows.replay", "stages imports flows.replay"),
    "logic in flows": ("flows/x.py", "from polykv.replay import sweep", "flows imports polykv.replay"),
    "zarr": ("polykv/report/x.py", "import zarr", "report imports zarr, which only storage may"),
    "pyarrow part": ("polykv/stages.py", "import pyarrow.parquet as pq", "stages imports pyarrow, which only storage"),
    "dask": ("polykv/storage/x.py", "from dask import delayed", "storage imports dask, which only execution may"),
    "prefect": ("polykv/stages.py", "from prefect import task", "stages imports prefect, which only flows may"),
    "torch elsewhere": (
        "polykv/search/x.py",
        "def f():\n    import torch",
        "search imports torch, which only capture, certify",
    ),
    "torch at load": ("polykv/capture/x.py", "import torch", "torch is imported when the module loads"),
    "numeric room": (
        "polykv/replay/x.py",
        "import yaml",
        "replay imports yaml; numeric rooms import blake3, constriction, numba",
    ),
    "numba": ("polykv/codecs/fast.py", "import numba", "numba is imported outside a kernel module"),
    "assert": ("polykv/replay/x.py", "def f(x):\n    assert x", "x.py:2: assert outside tests"),
    "bare except": ("flows/x.py", "try:\n    pass\nexcept:\n    pass", "x.py:3: bare except"),
    "print": ("polykv/stages.py", "print(1)", "print in library code"),
    "length": ("polykv/cli/x.py", "\n" * 401, "more than 400 lines"),
    "room through the package": (
        "polykv/codecs/x.py",
        "import polykv\npolykv.pool.build()",
        "polykv.pool is reached through the package",
    ),
    "unknown room": ("polykv/misc/x.py", "", "room misc is not declared"),
}

ALLOWED = {
    "torch where it is used": ("polykv/capture/x.py", "def f():\n    import torch"),
    "torch for typing": (
        "polykv/capture/x.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
    ),
    "numba in a kernel": ("polykv/codecs/fib_kernels.py", "import numba"),
    "downhill": ("polykv/execution/x.py", "from polykv.replay import sweep\nimport dask"),
    "own room": ("polykv/replay/x.py", "from .gates import judge\nfrom polykv.types import Cell"),
    "print for people": ("polykv/cli/x.py", "print(1)"),
    "version": ("polykv/storage/x.py", "from polykv import __version__"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_violation_is_caught(kind, tmp_path):
    name, code, words = PLANTED[kind]
    _plant(tmp_path / name, code)
    found = violations(tmp_path)
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.parametrize("kind", ALLOWED)
def test_what_is_allowed_passes(kind, tmp_path):
    _plant(tmp_path / ALLOWED[kind][0], ALLOWED[kind][1])
    assert violations(tmp_path) == []


def test_a_guarded_package_is_used_where_it_may_be():
    """A rule about a package that nobody imports any more guards nothing."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "polykv/storage").glob("*.py"))
    for package in [name for name, rooms in ONLY_IN.items() if rooms == {"storage"}]:
        assert re.search(rf"^ *(import|from) {package}\b", text, re.MULTILINE), package


def test_no_tracked_file_holds_a_path_of_a_machine_or_a_registry():
    guilty = [name for name in _tracked() if MACHINE.search((ROOT / name).read_bytes())]
    assert guilty == []


@pytest.mark.parametrize("text", [b"open('/t" + b"mp/x')", b"/ro" + b"ot/.cache", b"https://pypi.o" + b"rg/simple"])
def test_a_planted_machine_path_is_caught(text):
    assert MACHINE.search(text)


def _plant(path: Path, code: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(code + "\n", encoding="utf-8")


def _tracked() -> list[str]:
    """Files under version control; in an unpacked release, every file of the source tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode().split("\0") if name]
    else:
        names = [
            p.relative_to(ROOT).as_posix() for room in ("polykv", "flows", "tests") for p in (ROOT / room).rglob("*")
        ]
    return [name for name in names if (ROOT / name).is_file() and "__pycache__" not in name]
