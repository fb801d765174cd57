"""`import polykv`: every public name is there, and importing loads nothing heavy."""

import subprocess
import sys

import pytest

import polykv


@pytest.mark.parametrize("name", polykv.__all__)
def test_every_public_name_can_be_had(name):
    assert getattr(polykv, name).__name__
    assert name in dir(polykv)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Polcy'"):
        _ = polykv.Polcy


def test_importing_polykv_loads_no_room():
    code = "import sys, polykv; print([m for m in sys.modules if m.startswith('polykv.') or m in ('numpy', 'zarr')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
