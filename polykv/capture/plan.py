"""Planning a capture: everything that can be refused is refused here, before a byte is written."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from polykv import __version__
from polykv.capture.adapter import layer_count
from polykv.capture.assemble import Recipe, capture_rows
from polykv.capture.config import CaptureConfig, select_layers
from polykv.capture.corpus import read_corpus
from polykv.capture.forward import Row, probe_layers
from polykv.capture.models import LoadedModel, load_model
from polykv.capture.passages import CorpusPlan, PassageRules, cut_passages
from polykv.capture.queries import query_positions
from polykv.capture.residual import NO_LINEAR_PROJECTION, Projections, missing_parts
from polykv.errors import InputError, UnsupportedModelError
from polykv.types import CaptureMeta

# The probe only has to reach every layer once; its tokens are the first of the first passage.
_PROBE_TOKENS = 4
_VERSIONED = ("torch", "transformers", "tokenizers", "numpy", "gguf")


@dataclass(frozen=True, eq=False)
class CapturePlan:
    """A capture that is ready to run, and has run once on its first passage.

    `rows` are the passages with their query positions. `seconds_per_passage` was measured on
    the first one, checks included. `logits_detail` says in words why there is no logit data
    (None: there is).
    """

    config: CaptureConfig
    loaded: LoadedModel
    corpus: CorpusPlan
    meta: CaptureMeta
    rows: tuple[Row, ...]
    recipe: Recipe
    sinks: Mapping[int, np.ndarray]
    seconds_per_passage: float
    logits_detail: str | None

    def sink_logits(self, layer: int) -> np.ndarray | None:
        """[q_head] float32 learned sink logits of a captured layer, or None."""
        self.meta.layer(layer)
        return self.sinks.get(layer)

    def w_o(self, layer: int) -> np.ndarray | None:
        """[hidden, q_head·value_dim] float32 output projection, or None when there is no logit data."""
        self.meta.layer(layer)
        return None if self.recipe.projections is None else self.recipe.projections.w_o(layer)

    def wlm_gamma(self, label_ids: np.ndarray) -> np.ndarray | None:
        """[label, hidden] float32 rows of W_lm·γ, or None when there is no logit data."""
        return None if self.recipe.projections is None else self.recipe.projections.wlm_gamma(label_ids)

    @property
    def estimated_seconds(self) -> float:
        """Time the capture will take, in seconds, from the first passage."""
        return self.seconds_per_passage * len(self.rows)

    @property
    def estimated_bytes(self) -> int:
        """Bytes of K, V, q, out and logits before compression."""
        meta, width = self.meta, {"float32": 4, "float16": 2}[self.meta.store_dtype]
        per_passage = 8 * meta.n_tokens + meta.n_labels * (8 + 4 * meta.n_queries)
        for spec in meta.layers:
            tokens, queries = meta.n_tokens * spec.n_kv_heads, meta.n_queries * spec.n_q_heads
            per_passage += width * (tokens + queries) * (spec.head_dim + spec.value_dim)
        constants = sum(4 * meta.hidden_size * s.n_q_heads * s.value_dim for s in meta.layers) if meta.n_labels else 0
        return per_passage * meta.n_passages + constants


def plan_capture(
    config: CaptureConfig, loaded: LoadedModel | None = None, on_load: Callable[[], None] | None = None
) -> CapturePlan:
    """Load the model (unless given), cut the corpus, and capture the first passage as a rehearsal.

    `on_load` is called when nothing but the model itself can be wrong, before it is loaded.
    Raises InputError for what cannot be meant, UnsupportedModelError for a model whose attention
    cannot be read, CaptureError when the first passage does not recompute.
    """
    documents = read_corpus(config.corpus, config.text_field)
    loaded = loaded or load_model(config.model, config.compute_dtype, config.model_cache, on_load)
    check_model(loaded, config.n_tokens)
    check_labels(loaded, config.n_labels)
    corpus = cut_passages(documents, loaded.tokenize, _passage_rules(config), loaded.bos_id)
    rows = _rows(corpus, config)
    check_token_ids(loaded, [row.token_ids for row in rows])
    specs, sinks = probe_layers(loaded.model, rows[0].token_ids[:_PROBE_TOKENS])
    kept = select_layers(layer_count(loaded.model), config.layers, config.layer_stride)
    recipe = Recipe(
        loaded.model,
        {layer: specs[layer] for layer in kept},
        config.store_dtype,
        config.n_labels,
        loaded.n_token_ids,
        Projections(loaded.model),
    )
    recipe, detail, seconds = _rehearse(recipe, rows[0], config)
    meta = _meta(config, loaded, corpus, rows, recipe, detail)
    return CapturePlan(config, loaded, corpus, meta, rows, recipe, sinks, seconds, detail)


def _rehearse(recipe: Recipe, row: Row, config: CaptureConfig) -> tuple[Recipe, str | None, float]:
    """Capture one passage and keep nothing: (the recipe with or without projections, why it is
    without, seconds)."""
    detail = "not asked for" if config.n_labels == 0 else missing_parts(recipe.model, list(recipe.specs))
    if detail is not None:
        recipe = replace(recipe, projections=None)
    start = time.perf_counter()
    failure = capture_rows(recipe, [row])[0].logits_failure
    seconds = time.perf_counter() - start
    return (recipe if failure is None else replace(recipe, projections=None)), detail or failure, seconds


def _passage_rules(config: CaptureConfig) -> PassageRules:
    return PassageRules(
        config.n_tokens,
        config.n_passages,
        config.split_fractions,
        config.split_by,
        config.gap_tokens,
        config.min_tokens,
        config.skip_short,
    )


def _rows(corpus: CorpusPlan, config: CaptureConfig) -> tuple[Row, ...]:
    rows = []
    for passage in corpus.passages:
        length = len(passage.token_ids)
        try:
            positions = query_positions(
                length, config.n_queries, config.shared_tokens, config.recent_window, exact=length == config.n_tokens
            )
        except InputError as error:
            name = corpus.documents[passage.document].name
            raise InputError(f"passage {passage.index} ({name}): {error}") from error
        rows.append(Row(passage.index, passage.token_ids, positions))
    return tuple(rows)


def check_model(loaded: LoadedModel, n_tokens: int) -> None:
    """Raise unless the model is a decoder with room for passages of `n_tokens` tokens."""
    model_config = loaded.model.config
    if getattr(model_config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{type(loaded.model).__name__} is an encoder-decoder; only decoders have one KV cache"
        )
    longest = getattr(model_config.get_text_config(decoder=True), "max_position_embeddings", None)
    if longest is not None and n_tokens > longest:
        raise InputError(f"passages of {n_tokens} tokens are longer than the model's {longest} positions")


def check_labels(loaded: LoadedModel, n_labels: int) -> None:
    """Raise InputError, with both numbers, when there are fewer token ids than labels to keep."""
    known = min(loaded.n_token_ids, _vocabulary(loaded))
    if n_labels > known:
        raise InputError(
            f"n_labels is {n_labels}, more than the {known} token ids of the model: ask for --labels {known} or fewer"
        )


def check_token_ids(loaded: LoadedModel, passages: Sequence[np.ndarray]) -> None:
    """Raise InputError when passages [token] hold a token id that the model has no row for."""
    largest, vocabulary = max(int(token_ids.max()) for token_ids in passages), _vocabulary(loaded)
    if largest >= vocabulary:
        raise InputError(
            f"the tokenizer gave token id {largest}, but the model's vocabulary has {vocabulary} ids; "
            "model and tokenizer do not belong together"
        )


def _vocabulary(loaded: LoadedModel) -> int:
    return int(loaded.model.get_input_embeddings().weight.shape[0])


def _meta(
    config: CaptureConfig,
    loaded: LoadedModel,
    corpus: CorpusPlan,
    rows: tuple[Row, ...],
    recipe: Recipe,
    detail: str | None,
) -> CaptureMeta:
    text = loaded.model.config.get_text_config(decoder=True)
    rotary = any(getattr(text, name, None) for name in ("rope_parameters", "rope_theta", "rotary_pct", "rotary_dim"))
    reasons = {None: None, "not asked for": "not_requested"}
    return CaptureMeta(
        model_id=loaded.model_id,
        weight_digest=loaded.weight_digest,
        tokenizer=loaded.tokenizer_name,
        bos_rule=loaded.bos_rule,
        rope_point="post_rope" if rotary else "no_rope",
        documents=corpus.documents,
        passage_split=tuple(passage.split for passage in corpus.passages),
        passage_document=tuple(passage.document for passage in corpus.passages),
        layers=tuple(recipe.specs.values()),
        n_tokens=max(len(row.token_ids) for row in rows),
        n_queries=max(len(row.positions) for row in rows),
        n_labels=0 if detail else recipe.n_labels,
        hidden_size=int(text.hidden_size),
        store_dtype=config.store_dtype,
        compute_dtype=config.compute_dtype,
        logits_reason=reasons.get(detail, NO_LINEAR_PROJECTION),
        split_rule=corpus.split_rule,
        versions=_versions(),
        command=config.command,
    )


def _versions() -> dict[str, str]:
    found = {"polykv": __version__, "python": platform.python_version()}
    for package in _VERSIONED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found
