"""Greedy outputs of an arm against the baseline's: fast because it is wrong would show here."""

from collections.abc import Sequence
from statistics import fmean, median

from harness.runrecord import ArmRun
from harness.spec_arm import BASELINE


def parity(runs: Sequence[ArmRun], arm: str) -> dict[str, float | int | None]:
    """Compare answer by answer, both given the same prompt.

    equal_share: of the answers, those equal to the last token. equal_prefix_share: mean share of an
    answer's tokens before its first difference. equal_token_share: mean share of positions with the
    same token. first_difference_p50: median position of the first difference, counted from 0, of
    the answers that have one. All but `compared` are None when the servers sent no token ids.
    """
    outputs = {
        (run.arm, run.pair, record.index): record.output_ids
        for run in runs
        for record in run.records
        if record.output_ids
    }
    couples = [
        (stock, outputs[arm, pair, index])
        for (name, pair, index), stock in outputs.items()
        if name == BASELINE and (arm, pair, index) in outputs
    ]
    prefixes = [equal_prefix(one, two) for one, two in couples]
    shares = [length / len(one) for length, (one, _) in zip(prefixes, couples, strict=True)]
    same = [
        sum(a == b for a, b in zip(*couple, strict=False)) / len(couple[0]) for couple in couples
    ]
    different = [length for length, share in zip(prefixes, shares, strict=True) if share < 1]
    return {
        "compared": len(couples),
        "equal_share": fmean(share == 1 for share in shares) if couples else None,
        "equal_prefix_share": fmean(shares) if couples else None,
        "equal_token_share": fmean(same) if couples else None,
        "first_difference_p50": median(different) if different else None,
    }


def equal_prefix(one: Sequence[int], two: Sequence[int]) -> int:
    """Number of leading tokens that agree."""
    for position, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return position
    return min(len(one), len(two))
