"""The operators whose `triton.py` names compile cases in COMPILE_CASES: all that have one."""

OPERATORS = ["paged_logits"]
