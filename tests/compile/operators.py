"""The operators whose `triton.py` names compile cases in COMPILE_CASES: all that have one."""

OPERATORS = ["fold_select", "observe", "paged_logits"]
