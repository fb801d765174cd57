import pytest

from tests.report.run_samples import write_run


@pytest.fixture(scope="session")
def sample_run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "sample")
