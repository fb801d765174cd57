"""The tables polykv writes, column by column: the one place that declares them.

`polykv.storage` turns these declarations into pyarrow schemas, the documentation prints
them, and the replay fills them. Floats are doubles; NaN is never stored: a figure that
does not exist is null, and `null_when` says why.
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("string", "int64", "double", "bool", "list<double>", "list<string>", "blockers")


@dataclass(frozen=True)
class Column:
    """One column: its name, storage kind (one of KINDS), unit, meaning, and when it is null."""

    name: str
    kind: str
    unit: str
    meaning: str
    null_when: str = "never"


@dataclass(frozen=True)
class TableSchema:
    """A declared table; `version` goes into the file's metadata and rises when a column changes."""

    name: str
    version: int
    key: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


_FAILED = "the job failed (status)"
_FIGURE = "the job failed, or the figure is not finite"
_LOGITS = "no logit data (logits_reason)"


def _figure(name: str, unit: str, meaning: str, null_when: str = _FIGURE) -> Column:
    return Column(name, "double", unit, meaning, null_when)


_ROW = (
    Column("run_id", "string", "", "name of the run"),
    Column("split", "string", "", "select or confirm"),
    Column("layer", "int64", "", "the model's layer index"),
    Column("kv_head", "int64", "", "KV head within the layer"),
    Column("policy", "string", "", "name of the policy"),
    Column("policy_digest", "string", "", "blake3 of the policy's canonical JSON"),
    Column("row_kind", "string", "", "candidate, or window_only (sinks and recent window, nothing else attended)"),
    Column("candidate_k", "int64", "values", "budget of decoded values per query (0 in a window_only row)"),
    Column("is_full", "bool", "", "the budget covers every visible candidate of every query"),
    Column("status", "string", "", "ok, or failed"),
    Column("reason", "string", "", "why the job failed, or why figures are null", "nothing to say"),
    Column("row_digest", "string", "", "blake3 of all that determines this row's figures"),
    Column("n_passages", "int64", "passages", "passages measured", _FAILED),
    Column("n_documents", "int64", "documents", "documents they come from", _FAILED),
    Column("n_queries", "int64", "queries", "queries measured, each query head counted", _FAILED),
    Column("group_size", "int64", "q_heads", "query heads that share this KV head", _FAILED),
    Column("shared_tokens", "int64", "tokens", "tokens in the pool, for a full-length passage", _FAILED),
)

_METRICS = (
    _figure("output_cosine_mean", "1", "cosine of compressed and exact attention output, mean of passage means"),
    _figure("output_cosine_low", "1", "lower end of its 95 % interval over passages"),
    _figure("output_cosine_high", "1", "upper end"),
    _figure("output_cosine_p05", "1", "5th percentile over queries"),
    _figure("output_cosine_worst", "1", "smallest over queries"),
    _figure("output_relative_error_mean", "1", "‖compressed − exact‖ / ‖exact‖ of the output, mean of passage means"),
    _figure("output_relative_error_low", "1", "lower end of its 95 % interval over passages"),
    _figure("output_relative_error_high", "1", "upper end"),
    _figure("output_relative_error_p95", "1", "95th percentile over queries"),
    _figure("output_relative_error_worst", "1", "largest over queries"),
    _figure("score_correlation_mean", "1", "Pearson correlation of codec and exact scores over the candidates"),
    _figure("attention_kl_mean", "nats", "KL(compressed ‖ exact) of the attention weights; finite for any kept set"),
    _figure("attention_mass_kept_mean", "1", "exact attention weight of the tokens attended"),
    _figure("topk_recall_mean", "1", "share of the exact top candidate_k that was kept"),
    _figure(
        "selection_cosine_mean", "1", "output cosine of exact K and V at the tokens selected: selection error alone"
    ),
    _figure("selection_relative_error_mean", "1", "relative error of the same"),
    _figure("codec_cosine_mean", "1", "output cosine of compressed K and V at full candidate_k: codec error alone"),
    _figure("codec_relative_error_mean", "1", "relative error of the same"),
    _figure("saturated_fraction", "1", "share of queries with no more candidates than candidate_k"),
    _figure("capture_fidelity", "1", "relative distance of the recomputed exact output to the model's own"),
    Column(
        "passage_output_cosine", "list<double>", "1", "mean output cosine of each passage, in capture order", _FIGURE
    ),
    Column("passage_output_relative_error", "list<double>", "1", "mean relative error of each passage", _FIGURE),
)

_SEED = (
    _figure("seed_output_cosine_mean", "1", "seed metric: output cosine, mean over queries"),
    _figure("seed_output_mse_mean", "output²", "seed metric: mean squared output error"),
    _figure("seed_kl_divergence_mean", "nats", "seed metric: KL(exact ‖ compressed) over the label set", _LOGITS),
    _figure("seed_top1_agreement", "1", "seed metric: share of queries with the same top label", _LOGITS),
    _figure("seed_ppl_proxy_exact", "1", "exp of the mean exact label NLL", _LOGITS),
    _figure("seed_ppl_proxy_compressed", "1", "exp of the mean label NLL with this head compressed", _LOGITS),
    _figure("seed_ppl_proxy_delta", "1", "compressed − exact", _LOGITS),
    Column(
        "seed_passed",
        "bool",
        "",
        "all seed gates that could be computed pass (limits far too wide for one head)",
        _FAILED,
    ),
    Column("seed_blockers", "blockers", "", "seed gates that failed", _FAILED),
    Column("logits_reason", "string", "", "why logit figures are null", "they are not"),
)

_COST = (
    Column("decoded_values_total", "int64", "values", "compressed values decoded over all queries", _FAILED),
    Column("exact_values_total", "int64", "values", "sink and window values attended exactly", _FAILED),
    Column("full_decode_value_count", "int64", "values", "values a full decode would touch", _FAILED),
    _figure("decode_reduction", "1", "full_decode_value_count / max(1, decoded_values_total)"),
    _figure("bytes_per_token", "bytes", "K and V codes of one token of this KV head", _FAILED),
    _figure(
        "bytes_per_token_at_4k",
        "bytes",
        "the same with window, sinks, codebooks and means charged over 4,096 tokens",
        _FAILED,
    ),
    _figure("bytes_per_token_at_32k", "bytes", "the same over 32,768 tokens", _FAILED),
    _figure("float16_bytes_per_token", "bytes", "K and V of one token in float16", _FAILED),
)

_VERDICT = (
    Column(
        "verdict", "string", "", "pass, fail, inconclusive, insensitive; invalid when the exact control fails", _FAILED
    ),
    Column(
        "verdict_reason", "string", "", "too_few_passages, non_finite, insensitive …", "the verdict speaks for itself"
    ),
    Column("blockers", "blockers", "", "gates not passed: gate, value (null when not finite), limit", _FAILED),
)

RESULTS = TableSchema(
    "results",
    1,
    ("split", "layer", "kv_head", "policy", "row_kind", "candidate_k"),
    _ROW + _METRICS + _SEED + _COST + _VERDICT,
)

CONTROLS = TableSchema(
    "controls",
    1,
    ("split", "layer", "kv_head", "control"),
    (
        Column("run_id", "string", "", "name of the run"),
        Column("split", "string", "", "select or confirm"),
        Column("layer", "int64", "", "the model's layer index"),
        Column("kv_head", "int64", "", "KV head within the layer"),
        Column(
            "control",
            "string",
            "",
            "exact, zero_keys, shuffled_keys or zero_values: no sinks, no window, full candidate_k",
        ),
        Column("expected", "string", "", "pass for exact, fail for the destructive ones"),
        Column("status", "string", "", "ok, or failed"),
        Column("reason", "string", "", "why the job failed", "it did not"),
        Column("row_digest", "string", "", "blake3 of all that determines this row's figures"),
        _figure("output_cosine_mean", "1", "cosine to the exact output"),
        _figure("attention_kl_mean", "nats", "KL(control ‖ exact) of the attention weights"),
        Column("as_expected", "bool", "", "the control came out as it must", _FAILED),
    ),
)

SELECTION = TableSchema(
    "selection",
    1,
    ("layer", "kv_head", "policy"),
    (
        Column("run_id", "string", "", "name of the run"),
        Column("layer", "int64", "", "the model's layer index"),
        Column("kv_head", "int64", "", "KV head within the layer"),
        Column("policy", "string", "", "name of the policy"),
        Column("policy_digest", "string", "", "blake3 of the policy's canonical JSON"),
        Column("candidate_k", "int64", "values", "smallest budget that passes on select", "none passes"),
        Column(
            "shown_candidate_k",
            "int64",
            "values",
            "the budget whose figures stand here: candidate_k, else the largest",
            "every job failed",
        ),
        Column("is_full", "bool", "", "shown_candidate_k covers every candidate", "every job failed"),
        Column(
            "verdict",
            "string",
            "",
            "on confirm: pass, fail, inconclusive, insensitive, invalid; failed when there is no row",
        ),
        Column(
            "verdict_reason",
            "string",
            "",
            "too_few_passages, non_finite, no_candidate_k_passes_on_select …",
            "nothing to say",
        ),
        _figure("select_output_cosine_mean", "1", "output cosine on select"),
        _figure("select_output_relative_error_mean", "1", "relative error on select"),
        _figure("confirm_output_cosine_mean", "1", "output cosine on confirm"),
        _figure("confirm_output_cosine_low", "1", "lower end of its 95 % interval"),
        _figure("confirm_output_cosine_high", "1", "upper end"),
        _figure("confirm_output_relative_error_mean", "1", "relative error on confirm"),
        _figure("confirm_output_relative_error_low", "1", "lower end of its 95 % interval"),
        _figure("confirm_output_relative_error_high", "1", "upper end"),
        _figure("confirm_attention_kl_mean", "nats", "KL(compressed ‖ exact) of the weights on confirm"),
        _figure("confirm_label_kl_mean", "nats", "KL(exact ‖ compressed) of the label logits on confirm", _LOGITS),
        _figure(
            "window_only_output_cosine_mean",
            "1",
            "what sinks and window reach alone, on confirm",
            "the policy has none",
        ),
        _figure("decode_reduction", "1", "on confirm, at shown_candidate_k"),
        _figure("bytes_per_token", "bytes", "K and V codes of one token of this KV head"),
        _figure("float16_bytes_per_token", "bytes", "K and V of one token in float16"),
        Column("blockers", "blockers", "", "gates not passed on confirm", "every job failed"),
    ),
)

_ALL_ONLY = "slice_kind is not all"
_FEW = "fewer than two passages, or slice_kind is passage"

CERTIFY = TableSchema(
    "certify",
    1,
    ("policy", "slice_kind", "slice_index"),
    (
        Column("run_id", "string", "", "name of the run"),
        Column("policy", "string", "", "name of the policy"),
        Column("policy_digest", "string", "", "blake3 of the policy's canonical JSON"),
        Column("slice_kind", "string", "", "all, document, bucket (of token positions) or passage"),
        Column("slice_index", "int64", "", "place of the slice among those of its kind, from 0"),
        Column("document", "string", "", "name of the document", "slice_kind is all or bucket"),
        Column("first_token", "int64", "tokens", "first position scored in the slice"),
        Column("end_token", "int64", "tokens", "one past the last position scored"),
        Column("n_passages", "int64", "passages", "passages measured"),
        Column("n_documents", "int64", "documents", "documents they come from"),
        Column("n_tokens_scored", "int64", "tokens", "tokens predicted and scored"),
        _figure("ppl_baseline", "1", "exp of the mean over passages of the model's own mean NLL", "never"),
        _figure("ppl_policy", "1", "the same with the policy on, all layers and heads at once", "never"),
        _figure("ppl_increase", "1", "ppl_policy / ppl_baseline − 1", "never"),
        _figure("ppl_increase_low", "1", "lower end of its 95 % interval, paired by passage", _FEW),
        _figure("ppl_increase_high", "1", "upper end", _FEW),
        _figure("log_ratio_mean", "nats", "mean over passages of NLL(policy) − NLL(baseline)", "never"),
        _figure("log_ratio_standard_error", "nats", "its standard error over passages", _FEW),
        _figure("kl_mean", "nats", "KL(baseline ‖ policy) of next-token distributions, mean of passage means", "never"),
        _figure("kl_low", "nats", "lower end of its 95 % interval over passages", _FEW),
        _figure("kl_high", "nats", "upper end", _FEW),
        _figure("kl_p99", "nats", "99th percentile over tokens", "never"),
        _figure("top1_agreement", "1", "share of tokens with the same most likely prediction", "never"),
        _figure("decode_reduction", "1", "full_decode_value_count / max(1, decoded_values_total)", _ALL_ONLY),
        Column("decoded_values_total", "int64", "values", "compressed values decoded by the scored queries", _ALL_ONLY),
        Column("exact_values_total", "int64", "values", "sink and window values they attended exactly", _ALL_ONLY),
        Column("full_decode_value_count", "int64", "values", "values they could see", _ALL_ONLY),
        _figure("bytes_per_token", "bytes", "K and V codes of one token, all layers and heads", _ALL_ONLY),
        _figure("float16_bytes_per_token", "bytes", "the same in float16", _ALL_ONLY),
        _figure("fixed_bytes", "bytes", "kept once: window and sinks in float16, mean keys, codebooks", _ALL_ONLY),
        _figure("ratio_to_float16", "1", "float16_bytes_per_token / bytes_per_token", _ALL_ONLY),
        _figure("bytes_per_token_at_4k", "bytes", "codes kept and fixed_bytes over 4,096 tokens of context", _ALL_ONLY),
        _figure("ratio_to_float16_at_4k", "1", "float16 over that, sliding windows alike on both sides", _ALL_ONLY),
        _figure("bytes_per_token_at_32k", "bytes", "the same over 32,768 tokens", _ALL_ONLY),
        _figure("ratio_to_float16_at_32k", "1", "float16 over that", _ALL_ONLY),
        Column("verdict", "string", "", "against the budget: pass, fail or inconclusive", _ALL_ONLY),
        Column("verdict_reason", "string", "", "too_few_passages …", "the verdict speaks for itself"),
        Column(
            "passages_to_decide",
            "int64",
            "passages",
            "about how many passages would decide",
            "the verdict is not inconclusive, or no number of passages up to 100,000 would",
        ),
        Column("blockers", "blockers", "", "limits not met by the mean", _ALL_ONLY),
        Column("passage_log_ratio", "list<double>", "nats", "log ratio of each passage, in order", _ALL_ONLY),
        Column("passage_kl", "list<double>", "nats", "mean KL of each passage, in order", _ALL_ONLY),
    ),
)

TABLES = {table.name: table for table in (RESULTS, CONTROLS, SELECTION, CERTIFY)}
