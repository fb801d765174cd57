"""Calibration: learning sparse dictionaries, and the go/no-go that says whether they are worth it."""

from polykv.calibration.cells import CellGonogo, failed_rows, gonogo_cell
from polykv.calibration.judgement import Judgement, judge_dictionary
from polykv.calibration.learner import LearnedDictionary, LearnerConfig, learn_dictionary
from polykv.calibration.overall import overall
from polykv.calibration.residual_vq import ResidualVqSettings, fit_residual_vq, residual_vq_policy
from polykv.calibration.settings import FULL_GRID, LEGACY_RULE, RULE, GonogoSettings

__all__ = [
    "FULL_GRID",
    "LEGACY_RULE",
    "RULE",
    "CellGonogo",
    "GonogoSettings",
    "Judgement",
    "LearnedDictionary",
    "LearnerConfig",
    "ResidualVqSettings",
    "failed_rows",
    "fit_residual_vq",
    "gonogo_cell",
    "judge_dictionary",
    "learn_dictionary",
    "overall",
    "residual_vq_policy",
]
