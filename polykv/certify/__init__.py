"""Certification: a policy applied inside a real model, and what that does to its predictions."""

from polykv.certify.config import Budget, CertifyConfig
from polykv.certify.passages import EvaluationText, evaluation_text
from polykv.certify.receipt import certify_receipt
from polykv.certify.rows import certify_rows
from polykv.certify.run import Candidate, Certification, certify_policies

__all__ = [
    "Budget",
    "Candidate",
    "Certification",
    "CertifyConfig",
    "EvaluationText",
    "certify_policies",
    "certify_receipt",
    "certify_rows",
    "evaluation_text",
]
