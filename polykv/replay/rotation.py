"""Which rotation a policy takes off a cell's keys before they are coded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from polykv.codecs.base import Codec
from polykv.errors import InputError, PolicyError
from polykv.policy import KEEP_ROTATION, CompressionPolicy
from polykv.rotation import Rotation, rotation_from_arrays
from polykv.types import LayerSpec

Artifacts = Callable[[str], Mapping[str, np.ndarray]]


def cell_rotation(
    policy: CompressionPolicy, spec: LayerSpec, kv_head: int, artifacts: Artifacts | None
) -> Rotation | None:
    """The rotation of one cell's keys, from the policy's artifact; None when the policy keeps keys as they are.

    Raises PolicyError when there is no loader, the artifact is no rotation, or it lacks the layer
    or turns more numbers than a key has.
    """
    digest = policy.for_cell(spec.layer, kv_head).key_rotation
    if digest == KEEP_ROTATION:
        return None
    where = f"policy {policy.name!r}, key_rotation {digest[:12]}…"
    if artifacts is None:
        raise PolicyError(f"{where}: the artifact is needed, but no artifact loader was passed")
    return _of_layer(artifacts(digest), spec, where)


def check_decodable(codec: Codec, policy: CompressionPolicy) -> None:
    """Raise PolicyError for a key codec whose scores are not those of its decoded vectors.

    Un-rotated codes are decoded, rotated and then scored: a quantised query or a sketch for
    scores alone would be paid for and never used.
    """
    config = codec.config()
    for name, plain in {"query_mode": "asymmetric", "qjl": "off"}.items():
        if config.get(name, plain) != plain:
            raise PolicyError(
                f"policy {policy.name!r} codes keys before RoPE, which scores decoded keys: codec {codec.codec_id} has "
                f'{name} {config[name]!r}; set it to {plain!r}, or key_rotation to "{KEEP_ROTATION}"'
            )


def _of_layer(arrays: Mapping[str, np.ndarray], spec: LayerSpec, where: str) -> Rotation:
    try:
        rotations = rotation_from_arrays(arrays)
    except InputError as error:
        raise PolicyError(f"{where}: {error}") from error
    if spec.layer not in rotations:
        raise PolicyError(
            f"{where} has no layer {spec.layer}; it has {sorted(rotations)}: measure this model's rotation"
        )
    found = rotations[spec.layer]
    if 2 * len(found.frequencies) > spec.head_dim:
        raise PolicyError(
            f"{where} turns {2 * len(found.frequencies)} numbers of a key in layer {spec.layer}, which has {spec.head_dim}"
        )
    return found
