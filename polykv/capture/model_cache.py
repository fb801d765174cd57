"""GGUF models, dequantised once: the first load takes most of a minute, later ones a second."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any


def load_gguf(gguf: Path, digest: str, model_cache: str | None, torch: Any, transformers: Any) -> tuple[Any, Any]:
    """(tokenizer, model in float32) of a GGUF file.

    Kept under `model_cache` (None: polykv's folder in the user's cache directory; "": not kept)
    in a folder named after the file's digest and the version of transformers that read it, so
    that neither another file nor another reader can be taken for it. A folder is complete or
    absent: it is written aside and renamed.
    """
    folder = cache_folder(digest, model_cache, transformers.__version__)
    if folder is not None and folder.is_dir():
        return (
            transformers.AutoTokenizer.from_pretrained(folder),
            transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        )
    # The reader draws its own progress bar on standard error, past every setting of the library.
    with contextlib.redirect_stderr(io.StringIO()):
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # save_pretrained refuses a model that still calls itself quantised; its weights no longer are.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    if folder is not None:
        _keep(tokenizer, model, folder)
    return tokenizer, model


def cache_folder(digest: str, model_cache: str | None, version: str) -> Path | None:
    """Where the dequantised weights of one GGUF file live; None when none are kept."""
    if model_cache == "":
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polykv" / "models"
    return Path(model_cache or base).expanduser() / f"{digest}-transformers-{version}-float32"


def _keep(tokenizer: Any, model: Any, folder: Path) -> None:
    """Write beside and rename; a full or read-only disk only costs the next load its time."""
    aside = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = tempfile.mkdtemp(prefix=".part-", dir=folder.parent)
        tokenizer.save_pretrained(aside)
        model.save_pretrained(aside)
        os.rename(aside, folder)
    except OSError:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
