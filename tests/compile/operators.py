"""The operators whose `triton.py` names compile cases in COMPILE_CASES: all that have one."""

OPERATORS = ["audit", "fold_select", "observe", "paged_logits"]
