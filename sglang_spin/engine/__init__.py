"""SPIN inside SGLang: the only package that touches the engine."""
