"""Tiny random models whose attention and logits are sharp enough that a lost cache shows."""

import numpy as np
import torch
import transformers

from polykv.capture.models import LoadedModel

VOCABULARY = 61
WINDOW = 12
BASE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
SLIDING = {"sliding_window": WINDOW, "layer_types": ALTERNATING}
ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"sliding_window": WINDOW}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**SLIDING, "attn_logit_softcapping": 3.0}),
    "gemma3_mqa": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**SLIDING, "num_key_value_heads": 1}),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", {**SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2}),
}


def tiny(name="llama", seed=0):
    """A model of one architecture: random weights, queries and keys wide, logits of deviation about 3."""
    model_class, config_class, changes = ARCHITECTURES[name]
    torch.manual_seed(seed)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**{**BASE, **changes})).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.3 * noise)
            else:
                wide = 2.0 if "q_proj" in key or "k_proj" in key else 1.0
                parameter.copy_(wide * noise * parameter.shape[-1] ** -0.5)
        model.lm_head.weight.mul_(3.0)
    return model.requires_grad_(False)


def loaded(model, weight_digest="0" * 64):
    """The model with a tokenizer of one token a word."""
    return LoadedModel(
        model, lambda text: [int(word) for word in text.split()], None, VOCABULARY, "words", "tiny", weight_digest
    )


def words(n_tokens, seed=3):
    return " ".join(map(str, np.random.default_rng(seed).integers(3, VOCABULARY, n_tokens).tolist()))
