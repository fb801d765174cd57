"""The tables of a policy search: what it tried, and what it knows of every (layer, stream)."""

from __future__ import annotations

from polykv.columns import Column, TableSchema

SEARCH = TableSchema(
    "search",
    1,
    ("trial",),
    (
        Column("run_id", "string", "", "name of the run"),
        Column("trial", "int64", "", "in the order they were made, from 0"),
        Column(
            "knob",
            "double",
            "nats/byte",
            "price at which this sharing of bytes was struck",
            "everything at its cheapest",
        ),
        Column("bytes_per_token", "double", "bytes", "K and V codes of one token, all layers and heads, as measured"),
        Column("ratio_to_float16", "double", "1", "float16 bytes over that"),
        Column("predicted_kl", "double", "nats", "what the units of the sharing add up to"),
        Column("kl_mean", "double", "nats", "KL(baseline ‖ policy) of next-token predictions on split select"),
        Column("log_ratio_mean", "double", "nats", "NLL(policy) − NLL(baseline), mean over passages"),
        Column("log_ratio_standard_error", "double", "nats", "its standard error over passages"),
        Column("ppl_increase", "double", "1", "exp(log_ratio_mean) − 1"),
        Column("n_passages", "int64", "passages", "passages of split select judged"),
        Column("meets_budget", "bool", "", "KL within the search's target, log ratio not shown to be beyond it"),
        Column("is_best", "bool", "", "whether this sharing became the policy"),
    ),
)

SENSITIVITY = TableSchema(
    "sensitivity",
    2,
    ("layer", "kv_head", "stream"),
    (
        Column("run_id", "string", "", "name of the run"),
        Column("layer", "int64", "", "layer index of the model"),
        Column("kv_head", "int64", "", "the head", "all heads of the layer at once"),
        Column("stream", "string", "", "key or value"),
        Column(
            "true_kl",
            "double",
            "nats",
            "KL with this stream of the layer or head alone coded, by 3-bit rotated scalars",
        ),
        Column(
            "expected_kl",
            "double",
            "nats",
            "that KL as the Fisher information expects it, sum of the heads",
            "no gradients were taken",
        ),
        Column(
            "output_error", "double", "1", "squared relative error of its heads' attention outputs, mean of the heads"
        ),
        Column("output_cosine_loss", "double", "1", "1 − cosine of its heads' attention outputs, mean of the heads"),
        Column(
            "relative_mse", "double", "1", "squared error of the vectors over their squared size, mean of the heads"
        ),
        Column(
            "bytes_per_vector",
            "double",
            "bytes",
            "what the policy gives a vector of it, mean of the heads",
            "none was found",
        ),
    ),
)
