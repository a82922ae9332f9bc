"""SGLang is imported by some of these tests: the stand-ins for its missing wheels come first."""

from sglang_spin.cpu import bootstrap

bootstrap.prepare()
