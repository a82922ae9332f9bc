"""The real engine with SPIN's scorer in place of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.prompts import prompt
from tests.e2e.server import serve

pytestmark = pytest.mark.slow

LENGTHS = (1, 64, 129, 640, 2049)
TOKENS = 70


def test_the_fused_scorer_serves_and_observes(tmp_path: Path) -> None:
    """Tokens and skipped blocks are those of the engine's scorer followed by observe.

    The two scorers round differently; on this model the margins between tokens are wider.
    """
    prompts = [prompt(n, seed=n) for n in LENGTHS]
    answers, reports = [], []
    for scorer in ("engine", "fused"):
        with serve(tmp_path / f"{scorer}.log", f"--spin-scorer={scorer}") as server:
            replies = server.generate(prompts, TOKENS)
            reports.append(server.spin())
        answers.append([reply["output_ids"] for reply in replies])
    assert [report["scorer"] for report in reports] == ["engine", "fused"]
    assert reports[1]["realised_sparsity"] > 0.2
    same = ("steps", "kept_blocks", "seen_blocks")
    assert [reports[0][key] for key in same] == [reports[1][key] for key in same]
    assert answers[0] == answers[1]
