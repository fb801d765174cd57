"""Capture: the gated hook, the corpus reader, and the adapter that reads a real model."""

from polykv.capture.config import CaptureConfig
from polykv.capture.hook import (
    KvCapture,
    clear,
    disable,
    dropped_vectors,
    enable,
    is_enabled,
    record,
    snapshot,
)
from polykv.capture.session import AttentionRecord, CaptureSession, capturing

__all__ = [
    "AttentionRecord",
    "CaptureConfig",
    "CaptureSession",
    "KvCapture",
    "capturing",
    "clear",
    "disable",
    "dropped_vectors",
    "enable",
    "is_enabled",
    "record",
    "snapshot",
]
