import logging

import pytest
from prefect.testing.utilities import prefect_test_harness

from tests.tiny_store import write_tiny_store


@pytest.fixture(scope="session")
def harness():
    """A real Prefect API with a database of its own."""
    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    return write_tiny_store(tmp_path_factory.mktemp("stores") / "tiny")


@pytest.fixture(autouse=True)
def _quiet_prefect():
    """Expected failures would fill the test log with their tracebacks."""
    logger = logging.getLogger("prefect")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)
