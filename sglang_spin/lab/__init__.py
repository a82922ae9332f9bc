"""Offline work: models and studies of the method. Imports only sglang_spin.core."""
