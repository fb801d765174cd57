"""Named questions to a run's tables, as SQL: what `polykv query` answers.

Every view stands on the tables of `polykv.schemas` alone, so the same text works in any DuckDB
in which `results`, `selection` … name the Parquet files. `baseline_selection` is the selection
of another run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class View:
    """A named question: one line that says what it answers, its SQL, and the tables it reads."""

    name: str
    answers: str
    sql: str
    tables: tuple[str, ...]


_POLICIES = View(
    "policies",
    "one line a policy: cells by verdict, size, budget, cosine",
    """
select policy,
       count(*) as cells,
       count(*) filter (verdict = 'pass') as pass,
       count(*) filter (verdict = 'inconclusive') as inconclusive,
       count(*) filter (verdict in ('fail', 'failed', 'invalid')) as fail,
       count(*) filter (verdict = 'insensitive') as insensitive,
       median(candidate_k) filter (verdict = 'pass') as median_candidate_k,
       median(decode_reduction) filter (verdict = 'pass') as median_decode_reduction,
       median(confirm_output_cosine_mean) as median_output_cosine,
       min(confirm_output_cosine_mean) as worst_output_cosine,
       avg(bytes_per_token) as bytes_per_token,
       avg(bytes_per_token) / avg(float16_bytes_per_token) as share_of_float16
from selection
group by policy
order by bytes_per_token, policy
""",
    ("selection",),
)

_WORST_CELLS = View(
    "worst_cells",
    "the ten cells of each policy with the largest error, unmeasured ones first",
    """
select policy, layer, kv_head, verdict, candidate_k,
       confirm_output_relative_error_mean as relative_error,
       confirm_output_relative_error_low as relative_error_low,
       confirm_output_relative_error_high as relative_error_high,
       confirm_output_cosine_mean as output_cosine,
       window_only_output_cosine_mean as window_only_cosine,
       verdict_reason
from selection
qualify row_number() over (
    partition by policy
    order by confirm_output_relative_error_mean desc nulls first, layer, kv_head
) <= 10
order by policy, relative_error desc nulls first, layer, kv_head
""",
    ("selection",),
)

_CHEAPEST_K = View(
    "cheapest_k",
    "per layer and policy the smallest candidate_k with which every head passes, cheapest policy first",
    """
with here as (
    select layer, policy,
           count(*) as heads,
           count(*) filter (verdict = 'pass') as heads_that_pass,
           case when bool_and(verdict = 'pass') then max(candidate_k) end as needed_k,
           case when bool_and(verdict = 'pass') then min(decode_reduction) end as decode_reduction,
           avg(bytes_per_token) as bytes_per_token,
           avg(bytes_per_token) / avg(float16_bytes_per_token) as share_of_float16
    from selection
    group by layer, policy
)
select layer, policy, heads, heads_that_pass, needed_k as candidate_k, decode_reduction, bytes_per_token,
       share_of_float16
from here
order by layer, needed_k is null, bytes_per_token, policy
""",
    ("selection",),
)

_PARETO = View(
    "pareto",
    "policy × candidate_k that nothing measured beats in error, bytes and decoded values together",
    """
with point as (
    select policy, candidate_k,
           count(*) as cells,
           count(*) filter (verdict = 'pass') as cells_that_pass,
           avg(output_relative_error_mean) as relative_error,
           avg(output_cosine_mean) as output_cosine,
           avg(bytes_per_token) as bytes_per_token,
           avg(bytes_per_token) / avg(float16_bytes_per_token) as share_of_float16,
           sum(full_decode_value_count) / greatest(1, sum(decoded_values_total)) as decode_reduction
    from results
    where split = 'confirm' and row_kind = 'candidate' and status = 'ok' and output_relative_error_mean is not null
    group by policy, candidate_k
)
select *
from point as here
where not exists (
    from point as other
    where other.relative_error <= here.relative_error
      and other.bytes_per_token <= here.bytes_per_token
      and other.decode_reduction >= here.decode_reduction
      and (other.relative_error < here.relative_error
           or other.bytes_per_token < here.bytes_per_token
           or other.decode_reduction > here.decode_reduction)
)
order by bytes_per_token, decode_reduction, policy
""",
    ("results",),
)

_BLOCKERS = View(
    "blockers",
    "which gates stop cells, by policy: how many, and how far off",
    """
with blocked as (
    select policy, layer, kv_head, unnest(blockers) as blocker
    from selection
)
select policy,
       blocker.gate as gate,
       any_value(blocker.limit) as "limit",
       count(*) as cells,
       count(*) filter (blocker.value is null) as not_finite,
       median(blocker.value) as median_value,
       min(blocker.value) as smallest_value,
       max(blocker.value) as largest_value
from blocked
group by all
order by cells desc, policy, gate
""",
    ("selection",),
)

_FAILURES = View(
    "failures",
    "rows that could not be measured, by reason",
    """
select policy, reason, count(*) as rows, count(distinct (layer, kv_head)) as cells,
       list(distinct layer || '/' || kv_head order by layer || '/' || kv_head)[:5] as first_cells
from results
where status <> 'ok'
group by all
order by rows desc, policy, reason
""",
    ("results",),
)

_CONTROLS = View(
    "controls",
    "replays whose outcome is known: how many came out as they must",
    """
select control, split, expected,
       count(*) as cells,
       count(*) filter (as_expected) as as_expected,
       min(output_cosine_mean) as lowest_cosine,
       max(output_cosine_mean) as highest_cosine,
       max(attention_kl_mean) as largest_attention_kl
from controls
group by all
order by control, split
""",
    ("controls",),
)

_RUN_DIFF = View(
    "run_diff",
    "cells that left the baseline's 95 % interval or changed their verdict (needs --against)",
    """
select coalesce(now.policy, old.policy) as policy,
       coalesce(now.layer, old.layer) as layer,
       coalesce(now.kv_head, old.kv_head) as kv_head,
       case when old.policy is null then 'only now'
            when now.policy is null then 'only in the baseline'
            when old.confirm_output_cosine_low is null or old.confirm_output_cosine_high is null then 'no interval'
            when now.confirm_output_cosine_mean is null then 'worse'
            when now.confirm_output_cosine_mean < old.confirm_output_cosine_low then 'worse'
            when now.confirm_output_cosine_mean > old.confirm_output_cosine_high then 'better'
            else 'within' end as moved,
       old.verdict as baseline_verdict, now.verdict as verdict,
       old.candidate_k as baseline_candidate_k, now.candidate_k as candidate_k,
       old.confirm_output_cosine_mean as baseline_cosine,
       old.confirm_output_cosine_low as baseline_low,
       old.confirm_output_cosine_high as baseline_high,
       now.confirm_output_cosine_mean as output_cosine
from selection as now
full join baseline_selection as old using (policy, layer, kv_head)
where moved not in ('within', 'no interval') or old.verdict is distinct from now.verdict
order by moved <> 'worse', moved, policy, layer, kv_head
""",
    ("selection", "baseline_selection"),
)

_GONOGO = View(
    "gonogo",
    "the sparse dictionary's verdict by layer and stream, with its margin over the best fair rival",
    """
select layer, stream, kv_head, verdict, verdict_reason, bits_per_value,
       confirm_relative_error as relative_error, rival, rival_relative_error, margin, margin_low, margin_high
from gonogo
where is_primary
order by layer, stream, kv_head
""",
    ("gonogo",),
)

_CERTIFIED = View(
    "certified",
    "what each policy costs the model itself: perplexity and KL, against the budget",
    """
select policy, verdict, ppl_baseline, ppl_policy, ppl_increase, ppl_increase_low, ppl_increase_high,
       kl_mean, top1_agreement, 1 / ratio_to_float16 as share_of_float16, n_passages, n_tokens_scored
from certify
where slice_kind = 'all'
order by share_of_float16, policy
""",
    ("certify",),
)

VIEWS = {
    view.name: view
    for view in (
        _POLICIES,
        _WORST_CELLS,
        _CHEAPEST_K,
        _PARETO,
        _BLOCKERS,
        _FAILURES,
        _CONTROLS,
        _RUN_DIFF,
        _GONOGO,
        _CERTIFIED,
    )
}
