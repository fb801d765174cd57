"""Where data rests: the capture store (the only import of zarr) and the results tables (of pyarrow)."""

from polykv.storage.capture_store import CaptureStore
from polykv.storage.layout import SCHEMA
from polykv.storage.location import Location
from polykv.storage.verify import Damage, VerifyReport
from polykv.storage.writer import CaptureWriter, refuse_occupied

__all__ = ["SCHEMA", "CaptureStore", "CaptureWriter", "Damage", "Location", "VerifyReport", "refuse_occupied"]
