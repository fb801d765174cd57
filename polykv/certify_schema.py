"""The table `certify`: what a policy does to a model's predictions, by slice of the evaluation text."""

from __future__ import annotations

from polykv.columns import Column, TableSchema


def _figure(name: str, unit: str, meaning: str, null_when: str) -> Column:
    return Column(name, "double", unit, meaning, null_when)


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
        _figure(
            "fixed_bytes", "bytes", "kept once: window and sinks in float16, mean keys and values, codebooks", _ALL_ONLY
        ),
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
