"""The errors polykv raises: what was wrong, where, both numbers, and the remedy.

Every class is an `Exception` with the message as its only argument, so that it
survives pickling between processes. `exit_code` is what the command line returns:
2 for bad input or usage, 3 for damaged or incomplete data.
"""


class PolykvError(Exception):
    """Base of every error a user of polykv can meet."""

    exit_code = 2


class InputError(PolykvError, ValueError):
    """An argument, file or array that cannot be used as it is."""


class DimensionMismatch(InputError):
    """An array whose length differs from the one announced; both numbers are in the text."""


class NonFiniteError(InputError):
    """NaN or infinity where a number is needed; the text names the place."""


class CodecError(InputError):
    """A codec asked for something it cannot do (for example an odd head_dim)."""


class PolicyError(InputError):
    """A policy that is unknown, malformed or of another schema version."""


class UnsupportedModelError(InputError):
    """A model whose attention cannot be captured; the text names its class."""


class MissingExtraError(InputError):
    """An optional dependency is not installed; the text names the command that installs it."""


class WireError(InputError):
    """Encoded bytes that are truncated, oversized or foreign; the text names the offset."""


class ReceiptError(PolykvError):
    """A receipt that its data, or its own figures, contradict; the text names field, stated and found value."""

    exit_code = 3


class CaptureError(PolykvError):
    """A capture that does not say what the model did (failed recomputation, dropped vectors)."""

    exit_code = 3


class CertifyError(PolykvError):
    """A certification whose controls failed: its figures would say nothing about the model."""

    exit_code = 3


class StoreError(PolykvError):
    """A capture store or run directory that is damaged, incomplete or of another schema."""

    exit_code = 3


class UnsealedStoreError(StoreError):
    """A capture store whose writer never finished."""


class DamagedStoreError(StoreError):
    """A chunk that is missing or whose digest differs; the text names array, passage and head."""


class SchemaVersionError(StoreError):
    """Data written under a schema version that this release cannot read."""


class StorageFullError(StoreError):
    """The disk ran full while writing; what was already written is kept."""


class RunConfigError(InputError):
    """A run directory that holds another configuration than the one asked for."""


class RunLockedError(InputError):
    """A run directory that another process is writing."""


class WorkerError(PolykvError):
    """Workers that cannot do the job: unreachable, or with other versions than ours."""

    exit_code = 3


class TrackingError(PolykvError):
    """An experiment tracker that did not take a run; the text holds its own words and the remedy."""

    exit_code = 3
