"""From a codec's configuration to the codec: one table of id → class."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from polykv.codecs.base import Codec
from polykv.codecs.exact import ExactCodec
from polykv.codecs.fib import FibCodec
from polykv.codecs.residual_vq import ResidualVqCodec
from polykv.codecs.scalar import RotatedScalarCodec
from polykv.codecs.sparse import SparseCodec
from polykv.codecs.trained import TrainedCodec
from polykv.codecs.transform_ecsq import TransformEcsqCodec
from polykv.codecs.transform_pq import TransformPqCodec
from polykv.codecs.turbo import TurboCodec
from polykv.codecs.uniform import UniformCodec
from polykv.errors import CodecError

ArtifactLoader = Callable[[str], Mapping[str, np.ndarray]]

CODECS: Mapping[str, type[Codec]] = {
    ExactCodec.codec_id: ExactCodec,
    UniformCodec.codec_id: UniformCodec,
    **dict.fromkeys(FibCodec.codec_ids, FibCodec),
    **dict.fromkeys(TurboCodec.codec_ids, TurboCodec),
    RotatedScalarCodec.codec_id: RotatedScalarCodec,
    SparseCodec.codec_id: SparseCodec,
    ResidualVqCodec.codec_id: ResidualVqCodec,
    TransformPqCodec.codec_id: TransformPqCodec,
    TransformEcsqCodec.codec_id: TransformEcsqCodec,
}
CODEC_IDS = tuple(CODECS)


def build_codec(
    spec: Mapping[str, Any], head_dim: int, seed: int = 0, artifacts: ArtifactLoader | None = None
) -> Codec:
    """The codec of `spec` = {"id": …, **arguments} for vectors of `head_dim`.

    Arguments left out take the codec's defaults; `seed` is used where the spec names none and the
    codec has one. A head_dim in the spec must be `head_dim`. `artifacts` maps the digest of a
    trained codec to its arrays. `build_codec(codec.config(), codec.head_dim) == codec`.

    Raises CodecError for an unknown id (with the nearest known one), an unknown argument, an
    argument that contradicts the id, or a missing loader.
    """
    cls = codec_class(spec)
    known = {f.name for f in fields(cls)}
    arguments = {name: value for name, value in spec.items() if name != "id"}
    unknown = sorted(set(arguments) - known)
    if unknown:
        hint = _nearest(unknown[0], known)
        raise CodecError(
            f"codec {spec['id']!r} has no argument {unknown[0]!r}{hint}; it has {', '.join(sorted(known))}"
        )
    for name, value in cls.implied_arguments(spec["id"]).items():
        if arguments.setdefault(name, value) != value:
            raise CodecError(f"codec {spec['id']!r} means {name} = {value}, but {name} = {arguments[name]} is given")
    if arguments.setdefault("head_dim", head_dim) != head_dim:
        raise CodecError(
            f"codec {spec['id']!r} is set up for head_dim {arguments['head_dim']}, the data has {head_dim}"
        )
    if "seed" in known:
        arguments.setdefault("seed", seed)
    if issubclass(cls, TrainedCodec):
        arguments["arrays"] = _artifact_arrays(spec, artifacts)
    return cls(**arguments)


def codec_class(spec: Mapping[str, Any]) -> type[Codec]:
    """The class of `spec["id"]`; raises CodecError naming the nearest known id."""
    if not isinstance(spec, Mapping) or not isinstance(spec.get("id"), str):
        raise CodecError(f'a codec is given as {{"id": …, arguments}}, got {spec!r}; known ids: {", ".join(CODEC_IDS)}')
    if spec["id"] not in CODECS:
        hint = _nearest(spec["id"], CODECS)
        raise CodecError(f"unknown codec id {spec['id']!r}{hint}; known: {', '.join(CODEC_IDS)}")
    return CODECS[spec["id"]]


def _nearest(name: str, known: Any) -> str:
    begins = [candidate for candidate in known if name and candidate.startswith(name)]
    close = begins or difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _artifact_arrays(spec: Mapping[str, Any], artifacts: ArtifactLoader | None) -> Mapping[str, np.ndarray]:
    if "artifact" not in spec:
        raise CodecError(f"codec {spec['id']!r} needs the argument 'artifact', the digest of its fitted arrays")
    if artifacts is None:
        raise CodecError(f"codec {spec['id']!r} needs artifact {spec['artifact']!r}, but no artifact loader was passed")
    return artifacts(spec["artifact"])
