"""Greedy outputs of an arm against the baseline's: fast because it is wrong would show here."""

from collections.abc import Sequence
from statistics import fmean

from harness.runrecord import ArmRun
from harness.spec_arm import BASELINE


def parity(runs: Sequence[ArmRun], arm: str) -> dict[str, float | int | None]:
    """Compare request by request; for information, no gate.

    equal_prefix_share: mean share of an output's tokens before the first difference. The shares are
    None when the servers sent no token ids.
    """
    outputs = {
        (run.arm, run.pair, record.index): record.output_ids
        for run in runs
        for record in run.records
        if record.output_ids
    }
    shares = [
        equal_prefix(stock, outputs[arm, pair, index]) / len(stock)
        for (name, pair, index), stock in outputs.items()
        if name == BASELINE and (arm, pair, index) in outputs
    ]
    return {
        "compared": len(shares),
        "equal_share": fmean(share == 1 for share in shares) if shares else None,
        "equal_prefix_share": fmean(shares) if shares else None,
    }


def equal_prefix(one: Sequence[int], two: Sequence[int]) -> int:
    """Number of leading tokens that agree."""
    for position, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return position
    return min(len(one), len(two))
