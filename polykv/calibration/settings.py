"""How a go/no-go is run, and the rule it is judged by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polykv.calibration.learner import LearnerConfig
from polykv.codecs.sparse import COEFFICIENT_BITS
from polykv.errors import InputError
from polykv.receipts import digest_json, to_plain

FULL_GRID = tuple((atoms, sparsity) for atoms in (256, 1024, 4096) for sparsity in (2, 4, 8, 16))

RULE = (
    "margin = error of the best fair rival at no more bits (each family interpolated on its rate curve by time sharing) "
    "minus error of the dictionary, both on the confirm split. GO: the whole 95 % interval of the margin lies above 0, and "
    "that of the attention-output margin too where there are queries. NO-GO: one of the two lies wholly at or below 0. "
    "Otherwise, and with fewer units than min_units, INCONCLUSIVE."
)
LEGACY_RULE = (
    "GO when the dictionary's relative error on the rows it was trained on is at most that of "
    "round(x / absmax) in {-1, 0, 1} per vector"
)


@dataclass(frozen=True)
class GonogoSettings:
    """What is learned, against what it is held, and with how much statistics.

    grid: (n_atoms, sparsity) pairs, the first is the primary one that gives the verdict of a
    (layer, stream); coefficients: formats tried for each, the primary's is chosen on calibrate.
    train_rows_max: rows learned from, evenly spaced (None: all). sink_tokens and recent_window
    (tokens) stay exact, as policies keep them; queries_per_passage are attended with.
    amortised_over_vectors: the number of vectors that share a dictionary's bytes in the
    amortised column. min_units: fewer passages (or groups, rows) than this decide nothing.
    """

    grid: tuple[tuple[int, int], ...] = ((256, 4),)
    coefficients: tuple[str, ...] = ("float16", "int8", "int4")
    iterations: int = 20
    method: str = "mod"
    center: bool = False
    train_rows_max: int | None = 16_384
    sink_tokens: int = 4
    recent_window: int = 32
    queries_per_passage: int = 16
    n_resamples: int = 2000
    confidence: float = 0.95
    min_units: int = 6
    amortised_over_vectors: int = 32_768
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.grid or not self.coefficients:
            raise InputError("grid and coefficients must each have at least one entry")
        unknown = [c for c in self.coefficients if c not in COEFFICIENT_BITS]
        if unknown:
            raise InputError(f"unknown coefficients {unknown[0]!r}; known: {', '.join(COEFFICIENT_BITS)}")
        limits = {"n_resamples": 100, "min_units": 2, "amortised_over_vectors": 1, "sink_tokens": 0, "recent_window": 0}
        for name, least in {**limits, "queries_per_passage": 0, "seed": 0}.items():
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}, must be at least {least}")
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence is {self.confidence}, must be between 0 and 1")
        if self.train_rows_max is not None and self.train_rows_max < 1:
            raise InputError(f"train_rows_max is {self.train_rows_max}, must be at least 1")
        for atoms, sparsity in self.grid:
            self.learner(atoms, sparsity)

    def learner(self, n_atoms: int, sparsity: int) -> LearnerConfig:
        """The learner's configuration at one grid point."""
        return LearnerConfig(n_atoms, sparsity, self.iterations, self.method, self.center)

    def to_dict(self) -> dict[str, Any]:
        return to_plain(self)

    def digest(self) -> str:
        """blake3 of the canonical JSON."""
        return digest_json(self.to_dict())
