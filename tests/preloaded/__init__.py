"""Servers without the seconds that each of their processes spends on imports.

A parent imports packages of third parties once, and forks what the tests start. SGLang and what is
in this repository then load as in a fresh interpreter: in the same order, with the same plugins,
from the import path of the process that was asked for. A second parent has also imported what
SGLang imports before it loads plugins; it forks those whose SGLang and variables are the same.
"""
