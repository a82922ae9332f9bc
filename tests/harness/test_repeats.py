"""Pairs that are done again because the client was the limit, and the exit code of noise."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from harness import campaign as campaign_module
from harness.command import RunCommand, execute
from harness.finish import only_noise
from harness.progress import Progress
from harness.runcontext import RunContext
from harness.runrecord import ArmRun
from harness.runstore import RunStore
from harness.validity import client_was_the_limit
from tests.harness.helpers import read_summary, write_spec

LATE = "client_limited: the client's loop stood still for 9.0% of the window"


def late_in(numbers: set[int], monkeypatch: pytest.MonkeyPatch, why: str = LATE) -> list[str]:
    """Let the runs of these numbers, from 1, have a problem; returns the labels of all runs."""
    genuine, begun = campaign_module.run_arm, list[str]()

    async def counted(context: RunContext, run: ArmRun) -> None:
        begun.append(run.label)
        await genuine(context, run)
        run.problems += [why] if len(begun) in numbers else []

    monkeypatch.setattr(campaign_module, "run_arm", counted)
    return begun


def campaign(folder: Path, **options: Any) -> tuple[int, dict[str, Any], str]:
    """Two pairs, primed once; exit code, summary and output."""
    tolerate, limits = options.pop("tolerate", False), options.pop("limits", {})
    spec = write_spec(folder, pairs=2, workload={"prime": "once"}, limits=limits, **options)
    out = io.StringIO()
    code = execute(
        RunCommand(spec, folder / "results", tolerate_noise=tolerate), Progress(out)
    )  # fmt: skip
    return code, read_summary(folder), out.getvalue()


def test_pair_is_done_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late client costs its pair, not the campaign: emptied caches, both arms anew, a note."""
    begun = late_in({3}, monkeypatch)
    code, summary, out = campaign(tmp_path, limits={"repeats": 1})
    assert (code, summary["invalid_reasons"]) == (0, [])
    assert begun == ["pair 1 stock", "pair 1 spin", *2 * ["pair 2 spin"], "pair 2 stock"]
    assert [(run["pair"], run["arm"]) for run in summary["runs"]] == [
        (0, "stock"), (0, "spin"), (1, "spin"), (1, "stock"),
    ]  # fmt: skip
    # both arms are primed anew: their caches held the pair's prompts
    assert all(run["primed"] for run in summary["runs"])
    assert any(note.startswith(f"done again: pair 2 spin: {LATE}") for note in summary["notes"])
    assert "pair 2 is done again: the client was the limit" in out
    folder = tmp_path / "results" / "test" / "latest"
    assert len(RunStore(folder).load()) == 4
    assert len(json.loads((folder / "redone.json").read_text())) == 1


def test_repeats_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that stays late invalidates; where noise is tolerated that is told, and exit 0."""
    late_in({1, 2}, monkeypatch)
    code, summary, out = campaign(tmp_path, limits={"repeats": 1}, tolerate=True)
    assert summary["invalid_reasons"] == [f"pair 1 stock: {LATE}"]
    assert code == 0
    assert "no verdict: this machine was too noisy" in out


def test_only_lateness_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything else is a fault: not repeated, and exit 2 even when noise is tolerated."""
    begun = late_in({1}, monkeypatch, why="failed: 1 of 2 requests")
    code, summary, _ = campaign(tmp_path, limits={"repeats": 5}, tolerate=True)
    assert begun == ["pair 1 stock"]
    assert code == 2
    assert not only_noise(summary)


def test_what_only_noise_is() -> None:
    """INCONCLUSIVE, or runs that the client alone limited; never FAIL, never another reason."""

    def summary(outcome: str | None, *problems: str, reasons: int | None = None) -> dict[str, Any]:
        count = len(problems) if reasons is None else reasons
        return {
            "valid": not count,
            "verdict": None if outcome is None else {"outcome": outcome},
            "runs": [{"problems": [problem]} for problem in problems],
            "invalid_reasons": ["x"] * count,
        }

    assert only_noise(summary("INCONCLUSIVE"))
    assert only_noise(summary(None, LATE, LATE))
    assert not only_noise(summary("PASS"))
    assert not only_noise(summary("FAIL"))
    assert not only_noise(summary(None))
    assert not only_noise(summary(None, LATE, "failed: all"))
    # a reason that no run has, as a server that did not start
    assert not only_noise(summary(None, LATE, reasons=2))
    assert not only_noise(summary(None, reasons=1))
    assert not client_was_the_limit([])


def test_inconclusive_is_tolerated_and_a_fail_is_not(tmp_path: Path) -> None:
    """With noise tolerated an open verdict exits 0, a FAIL still 1."""
    open_gate = {"margins": {"output_tok_s": 1e-9, "itl_p50": None}}
    code, summary, _ = campaign(tmp_path, gate=open_gate, tolerate=True)
    expected = {"INCONCLUSIVE": 0, "PASS": 0, "FAIL": 1}
    assert code == expected[summary["verdict"]["outcome"]]
    code, summary, _ = campaign(
        tmp_path, gate={"margins": {"output_tok_s": 0.02, "itl_p50": None}},
        spin="--itl-ms 40", tolerate=True,
    )  # fmt: skip
    assert (code, summary["verdict"]["outcome"]) == (1, "FAIL")
