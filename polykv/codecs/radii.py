"""Radii on a logarithmic byte scale per vector: turbo's lossy radius code.

byte = round((ln r − low) / max(span, 2^-23) · 255), r̂ = exp(low + span · byte / 255), with low
and high the extremes of ln r over the vector, stored as float32 after the bytes.
"""

from __future__ import annotations

import numpy as np

LEAST_RADIUS = np.float32(1.17549435e-38)
LEAST_LOG = np.float32(-87.33654475055310)
_LEAST_SPAN = np.float32(2.0**-23)
# one vanishing radius would stretch the scale of all others; below 2^-12 of the largest it adds
# less than 1e-7 to the vector's squared relative error
_LEAST_RATIO = np.float32(2.0**-12)


def encode_log_radii(radii: np.ndarray) -> dict[str, np.ndarray]:
    """log_radii [n, pair] uint8 and log_range [n, 2] float32 of radii [n, pair] float32 ≥ 0."""
    floor = np.maximum(LEAST_RADIUS, radii.max(axis=1, keepdims=True) * _LEAST_RATIO)
    # float64 logarithms rounded to float32 are the same on every processor; float32 ones are not
    logs = np.log(np.maximum(radii, floor).astype(np.float64)).astype(np.float32)
    low, high = logs.min(axis=1, keepdims=True), logs.max(axis=1, keepdims=True)
    level = (logs - low) / np.maximum(high - low, _LEAST_SPAN) * np.float32(255)
    # half away from zero, as the reference rounds
    return {
        "log_radii": np.floor(level.astype(np.float64) + 0.5).astype(np.uint8),
        "log_range": np.concatenate([low, high], axis=1),
    }


def decode_log_radii(log_radii: np.ndarray, log_range: np.ndarray) -> np.ndarray:
    """[n, pair] float32. A vector whose largest radius is the smallest normal float32 was zero."""
    low, high = log_range[:, :1], log_range[:, 1:]
    logs = low + (high - low) * (log_radii.astype(np.float32) / np.float32(255))
    radii = np.exp(logs.astype(np.float64)).astype(np.float32)
    return np.where(high <= LEAST_LOG, np.float32(0), radii)
