"""What a capture is asked to do: one frozen object, checked when it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from polykv.errors import InputError
from polykv.types import SPLITS

STORE_DTYPES = ("float32", "float16")
COMPUTE_DTYPES = ("float32", "bfloat16")
SPLIT_RULES = ("auto", "document", "region")


@dataclass(frozen=True)
class CaptureConfig:
    """The arguments of one capture.

    model: a local directory, a .gguf file, "smollm2", or a hub id. corpus: files, globs and
    .jsonl files (texts in `text_field`); "split:path" assigns a document by hand.
    n_passages passages of n_tokens tokens (BOS included) are cut; `split_fractions` share them
    among calibrate, select and confirm, by whole document when `split_by` allows it, else by
    disjoint regions `gap_tokens` apart (None: one passage). A text shorter than a passage is
    kept whole when it has `min_tokens`; a shorter or empty one is refused, or left out and
    named when `skip_short`. n_queries query positions lie evenly in
    [shared_tokens + recent_window, length − 2] (shared_tokens None: half the length).
    layers / layer_stride choose layers (both None: all). n_labels 0 leaves logit data out.
    batch_size passages run at once, left-padded. model_cache: a directory for dequantised
    weights (None: the user's cache directory; "": none). command: what the user typed.
    """

    model: str
    corpus: tuple[str, ...]
    n_tokens: int = 256
    n_passages: int = 24
    n_queries: int = 8
    text_field: str = "text"
    split_fractions: tuple[float, float, float] = (0.25, 0.25, 0.5)
    split_by: str = "auto"
    gap_tokens: int | None = None
    min_tokens: int = 16
    skip_short: bool = False
    layers: tuple[int, ...] | None = None
    layer_stride: int | None = None
    shared_tokens: int | None = None
    recent_window: int = 32
    store_dtype: str = "float32"
    compute_dtype: str = "float32"
    batch_size: int = 1
    n_labels: int = 256
    model_cache: str | None = None
    command: str = ""

    def __post_init__(self) -> None:
        if not self.model:
            raise InputError("model is empty; give a directory, a .gguf file, a hub id, or smollm2")
        if isinstance(self.corpus, str) or not self.corpus:
            raise InputError(f"corpus is {self.corpus!r}; give a tuple of one or more files, globs or .jsonl files")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InputError(f"{name} is {value!r}, must be an integer ≥ {least}")
        _check_choice("store_dtype", self.store_dtype, STORE_DTYPES)
        _check_choice("compute_dtype", self.compute_dtype, COMPUTE_DTYPES)
        _check_choice("split_by", self.split_by, SPLIT_RULES)
        _check_fractions(self.split_fractions)
        if self.min_tokens > self.n_tokens:
            raise InputError(
                f"passages of {self.n_tokens} tokens (--tokens) are shorter than the {self.min_tokens} that a text must "
                f"have (min_tokens): ask for --tokens {self.min_tokens} or more"
            )
        if self.n_labels and self.n_labels < self.n_queries:
            raise InputError(
                f"n_labels is {self.n_labels}, fewer than the {self.n_queries} next tokens it must hold: "
                f"ask for --labels {self.n_queries} or more, or for none with --labels 0"
            )
        if self.layers is not None and self.layer_stride is not None:
            raise InputError(
                f"layers {list(self.layers)} and layer_stride {self.layer_stride} are both given; choose one"
            )


_LEAST = {
    "n_tokens": 4,
    "n_passages": 1,
    "n_queries": 1,
    "gap_tokens": 0,
    "min_tokens": 3,
    "layer_stride": 1,
    "shared_tokens": 1,
    "recent_window": 0,
    "batch_size": 1,
    "n_labels": 0,
}


def select_layers(n_layers: int, layers: tuple[int, ...] | None = None, stride: int | None = None) -> tuple[int, ...]:
    """The layers to keep, ascending, of a model with `n_layers`; raises InputError naming one it lacks."""
    if layers is None:
        return tuple(range(0, n_layers, stride or 1))
    for layer in layers:
        if not 0 <= layer < n_layers:
            raise InputError(f"layer {layer} does not exist; the model has layers 0 … {n_layers - 1}")
    if not layers:
        raise InputError(f"layers is empty; name at least one of 0 … {n_layers - 1}")
    return tuple(sorted(set(layers)))


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name} is {value!r}; known: {', '.join(known)}")


def _check_fractions(fractions: tuple[float, ...]) -> None:
    if len(fractions) != len(SPLITS):
        raise InputError(f"split_fractions has {len(fractions)} numbers, needs {len(SPLITS)} ({', '.join(SPLITS)})")
    if any(not math.isfinite(f) or f < 0 for f in fractions) or not math.isclose(sum(fractions), 1.0, abs_tol=1e-6):
        raise InputError(f"split_fractions {tuple(fractions)} must be ≥ 0 and sum to 1 (they sum to {sum(fractions)})")
