"""polykv: how far an LLM's key-value cache can be compressed, head by head, before the model changes."""

__version__ = "0.1.0"
