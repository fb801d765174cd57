"""A finished run told to an experiment tracker: MLflow or Weights & Biases, each an extra of its own."""

from polykv.tracking.record import RunRecord
from polykv.tracking.trackers import TRACKERS, Tracker, tracker_named

__all__ = ["TRACKERS", "RunRecord", "Tracker", "tracker_named"]
