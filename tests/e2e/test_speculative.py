"""Speculative decoding on the real engine: the same tokens, and memory of accepted rows alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.core.oracle import Oracle
from tests.e2e import _verify_probe
from tests.e2e.prompts import prompt
from tests.e2e.server import Server, serve
from tests.engine.doctored import doctored_sglang
from tests.engine.test_ledger import run_server

pytestmark = pytest.mark.slow

MODEL = "tiny-dsa-mtp"
TOKENS = 60
TOPK, LAYERS = 128, 4
# one prompt ends shortly before a page does, so that verify rows straddle two
PROMPTS = (1500, 700, 1977)


def _eagle(steps: int) -> tuple[str, ...]:
    return (
        "--speculative-algorithm=EAGLE",
        f"--speculative-num-steps={steps}",
        "--speculative-eagle-topk=1",
        f"--speculative-num-draft-tokens={steps + 1}",
    )


NGRAM = (
    "--speculative-algorithm=NGRAM",
    "--speculative-num-draft-tokens=4",
    "--speculative-ngram-max-bfs-breadth=1",
)
CASES = {"eagle-1": _eagle(1), "eagle-2": _eagle(2), "eagle-3": _eagle(3), "ngram": NGRAM}


def _generate(server: Server) -> list[dict]:
    prompts = [prompt(length, seed=i + 1) for i, length in enumerate(PROMPTS)]
    # the n-gram corpus starts empty, and the second time around finds what it has seen
    return server.generate(prompts, TOKENS) + server.generate([prompt(900, seed=9)], TOKENS)


def _tokens(replies: list[dict]) -> list[list[int]]:
    return [reply["output_ids"] for reply in replies]


def _accept_length(replies: list[dict]) -> float:
    steps = sum(reply["meta_info"]["spec_verify_ct"] for reply in replies)
    return sum(reply["meta_info"]["completion_tokens"] for reply in replies) / steps


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Tokens of stock SGLang without speculation."""
    log = tmp_path_factory.mktemp("plain") / "server.log"
    with serve(log, "--no-spin", model=MODEL) as server:
        return _tokens(_generate(server))


@pytest.mark.parametrize("case", CASES)
def test_dense_tokens_are_those_without_speculation(
    plain: list[list[int]], case: str, tmp_path: Path
) -> None:
    """With every block kept, drafts accepted part of the time change no token."""
    with serve(tmp_path / "log", "--spin-policy=dense", *CASES[case], model=MODEL) as server:
        replies = _generate(server)
        spin = server.spin()
    assert _tokens(replies) == plain
    drafts = int(next(o for o in CASES[case] if "draft-tokens" in o).rpartition("=")[2])
    assert 1 < _accept_length(replies) < drafts
    assert spin is not None
    assert spin["kept_blocks"] == spin["seen_blocks"]
    assert spin["steps"] >= max(reply["meta_info"]["spec_verify_ct"] for reply in replies)


@pytest.mark.parametrize("case", ["eagle-3", "ngram"])
def test_what_is_remembered_comes_from_accepted_rows(case: str, tmp_path: Path) -> None:
    """Step by step, V, D and the kept blocks equal an oracle's that sees accepted rows alone.

    Which rows were accepted is the engine's own word, which SPIN does not hear.
    """
    _verify_probe.write_plugin(tmp_path / "plugin")
    records = tmp_path / "records"
    paths = [str(tmp_path / "plugin"), os.environ.get("PYTHONPATH", "")]
    env = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        _verify_probe.FILE: str(records),
        "SPIN_AUDIT_EVERY": "0",
    }
    with serve(tmp_path / "log", *CASES[case], env=env, model=MODEL) as server:
        replies = _generate(server)
    assert 1 < _accept_length(replies) < 4
    replay = _Replay()
    for record in _verify_probe.read(records):
        getattr(replay, record.pop("kind"))(**record)
    assert replay.rows_compared > 100
    assert replay.rejected > 20
    assert replay.skipped > 100
    assert replay.straddled > 0


class _Replay:
    """Feeds the oracle from the probe's records, and compares."""

    def __init__(self) -> None:
        self.oracle = Oracle(LAYERS, alpha=0.25, staleness=0.4, sparsity=0.4, floor=3)
        self.generation: dict[int, int] = {}
        self.rows: list[int] = []
        self.seen: list[tuple[int, list[dict]]] = []
        self.rows_compared = self.rejected = self.skipped = self.straddled = 0

    def begin(self, n: int, rows: list[int], lengths: list[int], **found: Any) -> None:
        self.rows = rows
        for row, generation in zip(rows, found["generations"], strict=True):
            if self.generation.get(row) != generation:
                self.generation[row] = generation
                self.oracle.open(row)
        counts = [-(-(length + n - 1) // 64) for length in lengths]
        # no page has a history to hand on: prompts share nothing
        table = {row: [0] * count for row, count in zip(rows, counts, strict=True)}
        kept = self.oracle.step(table, dict(zip(rows, lengths, strict=True)), n - 1)
        for i, row in enumerate(rows):
            self.rows_compared += 1
            self.skipped += counts[i] - len(kept[0, row])
            self.straddled += counts[i] != -(-lengths[i] // 64)
            for layer in range(LAYERS):
                assert found["kept"][layer][i] == sorted(kept[layer, row])
                state = self.oracle.rows[layer, row]
                for name in ("vertical", "distance"):
                    line = found[name][layer, i]
                    known = getattr(state, name)
                    want = np.full_like(line, np.nan)
                    want[list(known)] = list(known.values())
                    np.testing.assert_array_equal(line, want)

    def observe(self, layer: int, maxima: list[dict]) -> None:
        self.seen.append((layer, maxima))

    def accept(self, accepted: list[int]) -> None:
        """What the engine accepted of the step's rows is shown to the oracle, the rest is not."""
        assert len(self.seen) == LAYERS
        for layer, maxima in self.seen:
            n = len(maxima) // len(self.rows)
            for i, row in enumerate(self.rows):
                for draft in range(accepted[i]):
                    self.oracle.observe(layer, row, maxima[i * n + draft])
        self.rejected += sum(n - count for count in accepted)
        self.seen = []


def test_unhooked_verify_steps_end_the_server(tmp_path: Path) -> None:
    """Upstream calls round the forward hook under speculation: the server ends and says so."""
    call = "as recorder_outputs,\n        ):\n            output = self._forward_raw("
    round_it = call.replace("self._forward_raw(", "type(self)._forward_raw.__wrapped__(self, ")
    env = doctored_sglang(tmp_path, "srt/model_executor/model_runner.py", call, round_it)
    # what SGLang would wait for before it ends: dumps of a CUDA process and of Python stacks
    env |= {"SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0", "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0"}
    # two drafts at most, so that the server's own warm-up request takes three steps
    code, output = run_server(env, f"--model={MODEL}", *_eagle(1))
    assert code != 0
    lines = [line for line in output.splitlines() if line.startswith("sglang_spin:")]
    assert "ModelRunner._forward_raw was never reached" in lines[-1]
