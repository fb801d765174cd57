"""Where data rests: the capture store (the only import of zarr) and the results tables (of pyarrow)."""

from polykv.storage.capture_store import CaptureStore
from polykv.storage.layout import SCHEMA
from polykv.storage.verify import Damage, VerifyReport
from polykv.storage.writer import CaptureWriter

__all__ = ["SCHEMA", "CaptureStore", "CaptureWriter", "Damage", "VerifyReport"]
