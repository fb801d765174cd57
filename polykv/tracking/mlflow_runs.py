"""A run told to MLflow, through a client of its own: nothing global is set."""

from __future__ import annotations

import time
from pathlib import Path, PurePosixPath
from typing import Any

from polykv.errors import MissingExtraError, TrackingError
from polykv.tracking.record import RunRecord, one_line

# where `mlflow ui` looks when it is started in the same folder
LOCAL_STORE = "mlflow.db"


def mlflow_module() -> Any:
    """The package; raises MissingExtraError naming the extra that installs it."""
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtraError(
            "logging to MLflow needs mlflow, which is not installed: run `make tracking`, or "
            "pip install 'polykv[mlflow]'"
        ) from error
    return mlflow


def log_to_mlflow(record: RunRecord, project: str, offline: bool = False) -> str:
    """Tell MLflow one run, in the experiment `project`; returns where it is.

    The store is MLflow's own choice (MLFLOW_TRACKING_URI, else mlflow.db in this folder);
    `offline` always takes the latter. A run that cannot be told whole is left behind as FAILED.
    Raises TrackingError with MLflow's own words.
    """
    mlflow = mlflow_module()
    # absolute: MLflow keeps what a relative name meant when it first heard it
    local = f"sqlite:///{(Path.cwd() / LOCAL_STORE).as_posix()}"
    client = mlflow.MlflowClient(tracking_uri=local if offline else None)
    try:
        run = client.create_run(_experiment(client, project), run_name=record.name)
        try:
            _fill(mlflow, client, run.info.run_id, record)
        except BaseException:
            client.set_terminated(run.info.run_id, "FAILED")
            raise
        client.set_terminated(run.info.run_id)
    except (mlflow.MlflowException, OSError) as error:
        raise TrackingError(
            f"MLflow took not all of {record.name}: {one_line(error)}; --offline keeps it in mlflow.db here"
        ) from error
    return f"{client.tracking_uri}, experiment {project!r}, run {run.info.run_id}"


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    return client.create_experiment(name) if found is None else found.experiment_id


def _fill(mlflow: Any, client: Any, run_id: str, record: RunRecord) -> None:
    entities, now_ms = mlflow.entities, int(1000 * time.time())
    client.log_batch(
        run_id,
        metrics=[entities.Metric(name, value, now_ms, 0) for name, value in record.metrics.items()],
        params=[entities.Param(name, value) for name, value in record.params.items()],
        tags=[entities.RunTag("polykv.run_id", record.run_id)],
    )
    for place, file in record.files.items():
        folder = PurePosixPath(place).parent.as_posix()
        client.log_artifact(run_id, str(file), None if folder == "." else folder)
