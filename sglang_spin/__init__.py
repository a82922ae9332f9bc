"""SPIN for SGLang: skip the KV blocks that past indexer scores say cannot matter."""

__version__ = "0.1.0"
