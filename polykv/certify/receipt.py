"""The receipt of a certification: what was measured, on what, and digests to check it by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polykv.capture.models import LoadedModel
from polykv.certify.rows import certify_rows
from polykv.certify.run import Certification
from polykv.receipts import NUMERICS_VERSION, digest_array, digest_json, to_plain

RECEIPT_SCHEMA = "polykv_certify_v1"
CLAIM = (
    "The policy was applied to the keys and values of all layers and heads at once, in one strict forward pass over "
    "each passage. Perplexities hold for these texts, this model and this context length."
)


def certify_receipt(certification: Certification, loaded: LoadedModel, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Plain JSON. `receipt_digest` is blake3 of the canonical JSON of everything else."""
    text, config = certification.text, certification.config
    rows = {row["policy"]: row for row in certify_rows(certification) if row["slice_kind"] == "all"}
    receipt = {
        "schema_version": RECEIPT_SCHEMA,
        "claim_boundary": CLAIM,
        "numerics_version": NUMERICS_VERSION,
        "model": {
            "id": loaded.model_id,
            "weight_digest": loaded.weight_digest,
            "tokenizer": loaded.tokenizer_name,
            "bos_rule": loaded.bos_rule,
            "layers": [spec.to_dict() for spec in certification.specs.values()],
        },
        "corpus": {
            "documents": [document.to_dict() for document in text.documents],
            "passages": [
                {"document": text.documents[owner].name, "token_digest": digest_array(ids)}
                for ids, owner in zip(text.token_ids, text.owner, strict=True)
            ],
        },
        "config": config.to_dict(),
        "notes": list(notes),
        "controls": certification.controls.to_dict(),
        "policies": [
            {
                "policy": figures.candidate.policy.to_dict(),
                "policy_digest": figures.candidate.policy.digest(),
                "key_means": figures.candidate.means_source,
                "key_means_digest": _means_digest(figures.candidate.means),
                "figures": rows[figures.candidate.policy.name],
            }
            for figures in certification.policies
        ],
    }
    plain = to_plain(receipt)
    return {**plain, "receipt_digest": digest_json(plain)}


def _means_digest(means: Any) -> str | None:
    """blake3 over the digests of all mean keys, by cell; None when no key is centred."""
    return None if means is None else digest_json({cell.key: digest_array(mean) for cell, mean in means.items()})
