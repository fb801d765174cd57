"""The tables polykv writes, column by column: the one place that declares them.

`polykv.storage` turns these declarations into pyarrow schemas, the documentation prints
them, and the replay fills them. Floats are doubles; NaN is never stored: a figure that
does not exist is null, and `null_when` says why.
"""

from __future__ import annotations

from polykv.certify_schema import CERTIFY
from polykv.columns import KINDS, Column, TableSchema
from polykv.search_schema import SEARCH, SENSITIVITY

__all__ = [
    "CERTIFY",
    "CONTROLS",
    "GONOGO",
    "KINDS",
    "RESULTS",
    "SEARCH",
    "SELECTION",
    "SENSITIVITY",
    "TABLES",
    "Column",
    "TableSchema",
]

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
        "verdict_reason", "string", "", "too_few_passages, non_finite, zero_output …", "the verdict speaks for itself"
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
        Column(
            "reason", "string", "", "why the job failed, or zero_output: the head's exact output is all zero", "neither"
        ),
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
            "too_few_passages, non_finite, zero_output, no_candidate_k_passes_on_select …",
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

_ARM = "the dictionary could not be learned (status)"
_RIVAL = "the row is a rival's"
_PROBED = "there are no queries"
_PRIMARY = "not the primary row"

GONOGO = TableSchema(
    "gonogo",
    1,
    ("layer", "stream", "kv_head", "codec", "config_digest"),
    (
        Column("run_id", "string", "", "name of the run"),
        Column("layer", "int64", "", "the model's layer index"),
        Column("stream", "string", "", "key or value"),
        Column("kv_head", "int64", "", "KV head within the layer; -1: all heads of the layer share one dictionary"),
        Column(
            "codec",
            "string",
            "",
            "sparse (the dictionary), or a rival: nothing, int8, uniform, channel, turbo_scalar, fib, …_centered",
        ),
        Column("config", "string", "", "the codec's configuration as canonical JSON"),
        Column("config_digest", "string", "", "blake3 of config"),
        Column("n_atoms", "int64", "atoms", "atoms of the dictionary", _RIVAL),
        Column("sparsity", "int64", "atoms", "atoms used per vector", _RIVAL),
        Column(
            "coefficients",
            "string",
            "",
            "float16, int8 or int4",
            "the row is a rival's, or the dictionary could not be learned",
        ),
        Column(
            "artifact",
            "string",
            "",
            "blake3 of the dictionary's file",
            "the row is a rival's, or the dictionary could not be learned",
        ),
        Column("is_primary", "bool", "", "this row's verdict is that of the (layer, stream, kv_head)"),
        Column("status", "string", "", "ok, or failed"),
        Column("reason", "string", "", "why it failed", "it did not"),
        Column("row_digest", "string", "", "blake3 of all that determines this row's figures"),
        Column("head_dim", "int64", "numbers", "width of the vectors", _FAILED),
        Column("unit_kind", "string", "", "what the bootstrap draws: passages or documents", _FAILED),
        Column("n_units", "int64", "units", "units of confirm", _FAILED),
        Column("n_calibrate_vectors", "int64", "vectors", "vectors of calibrate", _FAILED),
        Column("n_trained_vectors", "int64", "vectors", "of these, evenly spaced, learned from", _FAILED),
        Column("n_confirm_vectors", "int64", "vectors", "vectors of confirm, sinks left out", _FAILED),
        _figure("bits_per_vector", "bits", "indices, coefficients, norms and scales of one vector", _ARM),
        _figure("bits_per_value", "bits", "the same per number", _ARM),
        _figure("side_bytes", "bytes", "stored once: dictionary, mean", _ARM),
        _figure(
            "bits_per_vector_amortised",
            "bits",
            "bits_per_vector with side_bytes shared by amortised_over_vectors",
            _ARM,
        ),
        Column("amortised_over_vectors", "int64", "vectors", "vectors that share side_bytes in that column", _FAILED),
        _figure(
            "calibrate_relative_error", "1", "√(Σ‖x̂−x‖²/Σ‖x‖²) on calibrate, where the dictionary was learned", _ARM
        ),
        _figure("confirm_relative_error", "1", "the same on confirm", _ARM),
        _figure("confirm_relative_error_low", "1", "lower end of its interval over units", "fewer than 2 units"),
        _figure("confirm_relative_error_high", "1", "upper end", "fewer than 2 units"),
        _figure(
            "attention_output_error",
            "1",
            "mean over units of ‖Δo‖/‖o‖ with this stream coded, sinks and recent window exact",
            _PROBED,
        ),
        _figure("attention_output_error_low", "1", "lower end of its interval", "no queries, or fewer than 2 units"),
        _figure("attention_output_error_high", "1", "upper end", "no queries, or fewer than 2 units"),
        _figure(
            "attention_kl_mean",
            "nats",
            "KL(coded ‖ exact) of the attention weights, mean over units; 0 for values",
            _PROBED,
        ),
        Column("rival", "string", "", "best fair rival family at no more bits", _RIVAL),
        _figure("rival_relative_error", "1", "its error, interpolated on its rate curve", _RIVAL),
        _figure(
            "margin", "1", "rival_relative_error − confirm_relative_error: above 0 the dictionary is better", _RIVAL
        ),
        _figure("margin_low", "1", "lower end of its interval", "a rival's row, or fewer than 2 units"),
        _figure("margin_high", "1", "upper end", "a rival's row, or fewer than 2 units"),
        _figure("amortised_margin", "1", "the margin with side bytes charged to both sides", _RIVAL),
        _figure(
            "calibrate_ratio",
            "1",
            "rival error / dictionary error on calibrate",
            "a rival's row, or a dictionary without error",
        ),
        Column(
            "attention_rival",
            "string",
            "",
            "best rival family by attention-output error",
            "a rival's row, or no queries",
        ),
        _figure(
            "attention_margin",
            "1",
            "its attention-output error − that of the dictionary",
            "a rival's row, or no queries",
        ),
        _figure(
            "attention_margin_low", "1", "lower end of its interval", "a rival's row, no queries, or fewer than 2 units"
        ),
        _figure("attention_margin_high", "1", "upper end", "a rival's row, no queries, or fewer than 2 units"),
        Column(
            "verdict", "string", "", "go, no-go or inconclusive by polykv.calibration.RULE", "a rival's row, or failed"
        ),
        Column(
            "verdict_reason",
            "string",
            "",
            "too_few_units, interval_holds_zero, attention_worse, …",
            "nothing to say",
        ),
        Column("legacy_verdict", "string", "", "the original rule (polykv.calibration.LEGACY_RULE)", _PRIMARY),
        _figure(
            "legacy_dictionary_error",
            "1",
            "relative error on the rows trained on, coefficients not quantised",
            _PRIMARY,
        ),
        _figure("legacy_ternary_error", "1", "relative error of round(x / absmax) on the same rows", _PRIMARY),
        Column("unit_energy", "list<double>", "number²", "Σ‖x‖² of each unit of confirm", _FAILED),
        Column("unit_squared_error", "list<double>", "number²", "Σ‖x̂−x‖² of each unit", _ARM),
        Column("rival_unit_squared_error", "list<double>", "number²", "the same of `rival`, interpolated", _RIVAL),
        Column("unit_attention_error", "list<double>", "1", "mean ‖Δo‖/‖o‖ of each unit", _PROBED),
        Column(
            "rival_unit_attention_error",
            "list<double>",
            "1",
            "the same of `attention_rival`, interpolated",
            "a rival's row, or no queries",
        ),
    ),
)

TABLES = {table.name: table for table in (RESULTS, CONTROLS, SELECTION, GONOGO, CERTIFY, SEARCH, SENSITIVITY)}
