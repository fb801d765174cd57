import pytest

from tests.tiny_store import write_tiny_store


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    return write_tiny_store(tmp_path_factory.mktemp("stores") / "tiny")
