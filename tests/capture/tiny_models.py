"""Tiny models of many architectures, randomly initialised and then made sensitive.

As they come from their constructors such models check nothing: their attention is uniform.
Here query and key projections are scaled until the scores' standard deviation is about 4, and
every bias, norm weight and sink gets a real value.
"""

from dataclasses import dataclass

import numpy as np
import torch
import transformers

from polykv.capture.adapter import tapped
from polykv.capture.config import CaptureConfig
from polykv.capture.forward import pad_left, run
from polykv.capture.models import LoadedModel

VOCABULARY = 97
N_TOKEN_IDS = 90
WINDOW = 8
BASE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Tiny:
    """One architecture: its classes, its configuration, and whether its attention enters the residual linearly."""

    name: str
    config: dict
    linear: bool


TINY = {
    "llama": Tiny("Llama", {}, True),
    "llama_mqa_tied": Tiny("Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}, True),
    "llama_bias": Tiny("Llama", {"attention_bias": True}, True),
    "mistral": Tiny("Mistral", {"sliding_window": WINDOW}, True),
    "qwen2": Tiny("Qwen2", {}, True),
    "qwen3": Tiny("Qwen3", {"head_dim": 16}, True),
    "gemma2": Tiny(
        "Gemma2",
        {"head_dim": 16, "sliding_window": WINDOW, "layer_types": ALTERNATING, "attn_logit_softcapping": 5.0},
        False,
    ),
    "gemma3": Tiny("Gemma3", {"head_dim": 16, "sliding_window": WINDOW, "layer_types": ALTERNATING}, False),
    "phi3": Tiny("Phi3", {}, True),
    "granite": Tiny("Granite", {"attention_multiplier": 0.3, "residual_multiplier": 0.5}, False),
    "olmo2": Tiny("Olmo2", {}, False),
    "gpt2": Tiny(
        "GPT2", {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 128, "vocab_size": VOCABULARY}, False
    ),
    "gpt_oss": Tiny(
        "GptOss",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "layer_types": ALTERNATING,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
        True,
    ),
    "cohere": Tiny("Cohere", {}, False),
    "starcoder2": Tiny("Starcoder2", {"sliding_window": None}, False),
    "gpt_neox": Tiny("GPTNeoX", {}, False),
    "deepseek_v3": Tiny(
        "DeepseekV3",
        {
            "num_key_value_heads": 6,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 3,
        },
        True,
    ),
}


def make(key, seed=0, deviation=4.0):
    """A sensitive tiny model of the table: its scores have about this standard deviation."""
    tiny = TINY[key]
    config = tiny.config if key == "gpt2" else {**BASE, **tiny.config}
    model = build(tiny.name, config, seed)
    return sensitive(model, seed, deviation)


def build(name, config, seed=0):
    torch.manual_seed(seed)
    config_class = {"Gemma3": "Gemma3TextConfig"}.get(name, f"{name}Config")
    model_class = {"GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM")
    return getattr(transformers, model_class)(getattr(transformers, config_class)(**config)).eval()


def sensitive(model, seed, deviation):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
        for _ in range(4):
            for layer, found in score_deviations(model).items():
                widen(attention_modules(model)[layer], (deviation / found) ** 0.5)
    return model


def attention_modules(model):
    return {m.layer_idx: m for m in model.modules() if hasattr(m, "layer_idx") and "Attention" in type(m).__name__}


def widen(attention, factor):
    """Multiply queries and keys by `factor`, wherever this architecture makes them."""
    if hasattr(attention, "q_norm") and hasattr(attention, "k_norm"):
        for norm in (attention.q_norm, attention.k_norm):
            norm.weight.mul_(factor)
            if "Gemma" in type(norm).__name__:
                norm.weight.add_(factor - 1)
    elif hasattr(attention, "qkv_proj"):
        attention.qkv_proj.weight[: attention.config.hidden_size + key_width(attention)].mul_(factor)
    elif hasattr(attention, "c_attn"):
        attention.c_attn.weight[:, : 2 * attention.embed_dim].mul_(factor)
        attention.c_attn.bias[: 2 * attention.embed_dim].mul_(factor)
    elif hasattr(attention, "query_key_value"):
        width = attention.head_size
        for start in range(0, attention.query_key_value.weight.shape[0], 3 * width):
            attention.query_key_value.weight[start : start + 2 * width].mul_(factor)
            attention.query_key_value.bias[start : start + 2 * width].mul_(factor)
    elif hasattr(attention, "kv_b_proj"):
        attention.q_b_proj.weight.mul_(factor**2)
    else:
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight.mul_(factor)
            if projection.bias is not None:
                projection.bias.mul_(factor)


def key_width(attention):
    return attention.config.num_key_value_heads * attention.head_dim


def score_deviations(model, n_tokens=48):
    """{layer: standard deviation of the scaled scores the softmax sees}, before any soft-cap."""
    found = {}

    def receive(call):
        keys = call.key.repeat_interleave(call.spec.group_size, dim=1)
        found[call.spec.layer] = float((call.query @ keys.transpose(2, 3)).std()) * call.spec.softmax_scale

    with tapped(model, receive):
        run(model, pad_left(model, [token_ids(n_tokens)]), keep=[-1])
    return found


def token_ids(n_tokens, seed=3):
    return np.random.default_rng(seed).integers(3, N_TOKEN_IDS, n_tokens)


def loaded(model, bos_id=None, n_token_ids=N_TOKEN_IDS):
    """A model with a tokenizer of one token a word."""
    return LoadedModel(
        model, lambda text: [int(word) for word in text.split()], bos_id, n_token_ids, "words", "tiny", "0" * 64
    )


def text(n_tokens, seed=3):
    return " ".join(map(str, token_ids(n_tokens, seed).tolist()))


def config(folder, **changes):
    """A capture of two passages of 40 tokens out of one text."""
    file = folder / "words.txt"
    if not file.exists():
        file.write_text(text(300))
    defaults = {
        "model": "tiny",
        "corpus": (str(file),),
        "n_tokens": 40,
        "n_passages": 2,
        "n_queries": 6,
        "recent_window": 4,
        "n_labels": 20,
    }
    return CaptureConfig(**{**defaults, **changes})
