"""A run told to Weights & Biases: parameters as config, figures as summary, files as one artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polykv.errors import MissingExtraError, TrackingError
from polykv.tracking.record import RunRecord, one_line
from polykv.tracking.wandb_file import wait_until_kept

ARTIFACT_TYPE = "polykv-run"
KEPT_WITHIN_S = 60.0


def wandb_module() -> Any:
    """The package; raises MissingExtraError naming the extra that installs it."""
    try:
        import wandb
    except ImportError as error:
        raise MissingExtraError(
            "logging to Weights & Biases needs wandb, which is not installed: run `make tracking`, or "
            "pip install 'polykv[wandb]'"
        ) from error
    return wandb


def log_to_wandb(record: RunRecord, project: str, offline: bool = False) -> str:
    """Tell Weights & Biases one run, in `project`; returns its URL, or its folder when it stays here.

    `offline` keeps it in the folder wandb/, from where `wandb sync` can send it later; otherwise
    wandb's own settings (WANDB_MODE, WANDB_API_KEY …) decide. Raises TrackingError with its words,
    and when a run that stays here is not written out within a minute.
    """
    wandb = wandb_module()
    try:
        run = wandb.init(
            project=project,
            name=record.name,
            config={**record.params},
            mode="offline" if offline else None,
            reinit="create_new",
            # what a run found was decided elsewhere and before: this folder's git and output are no part of it
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        try:
            _fill(wandb, run, record)
        except BaseException:
            run.finish(exit_code=1)
            raise
        run.finish()
    except (wandb.Error, ValueError, OSError) as error:
        raise TrackingError(
            f"Weights & Biases took not all of {record.name}: {one_line(error)}; --offline keeps it in wandb/ here"
        ) from error
    if run.disabled:
        raise TrackingError(f"{record.name} was told to nobody: WANDB_MODE is disabled; unset it, or --offline")
    if not run.offline:
        return str(run.url)
    folder = Path(run.dir).parent
    wait_until_kept(folder, KEPT_WITHIN_S)
    return str(folder)


def _fill(wandb: Any, run: Any, record: RunRecord) -> None:
    run.summary.update({**record.metrics})
    # the run's config holds all parameters; an artifact takes no more than 100
    metadata = {"polykv.run_id": record.run_id}
    artifact = wandb.Artifact(f"polykv-{record.run_id}", type=ARTIFACT_TYPE, metadata=metadata)
    for place, file in record.files.items():
        artifact.add_file(str(file), name=place)
    run.log_artifact(artifact)
