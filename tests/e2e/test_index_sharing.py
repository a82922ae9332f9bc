"""GLM-5's shared indexers: layers that own one run SPIN, the others inherit what it selected."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_spin.cpu.tiny_glm import LAYERS, SHARED
from tests.e2e import _selection_probe as probe
from tests.e2e import probe_plugin
from tests.e2e.prompts import prompt
from tests.e2e.server import Server, serve

pytestmark = pytest.mark.slow

LENGTHS = (65, 640, 1500, 2500)
TOKENS = 24
OWNERS = [layer for layer in range(LAYERS) if layer not in SHARED]


def _answers(server: Server) -> list[tuple]:
    prompts = [prompt(n, seed=n) for n in LENGTHS]
    replies = server.generate(prompts, TOKENS, return_logprob=True)
    return [(r["output_ids"], r["meta_info"]["output_token_logprobs"]) for r in replies]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> list[tuple]:
    """What SGLang alone answers."""
    log = tmp_path_factory.mktemp("stock") / "server.log"
    with serve(log, "--no-spin", model="tiny-glm") as server:
        return _answers(server)


@pytest.mark.parametrize("sparsity", [0.0, 0.5])
def test_only_layers_with_an_indexer_run_spin(
    stock: list[tuple], tmp_path: Path, sparsity: float
) -> None:
    """State is of indexer layers alone; every other layer attends to what the last one chose."""
    calls = tmp_path / "calls.jsonl"
    env = probe_plugin.install(tmp_path / "plugin", probe.__name__) | {probe.FILE: str(calls)}
    options = (f"--spin-sparsity={sparsity}",)
    with serve(tmp_path / "server.log", *options, env=env, model="tiny-glm") as server:
        answers = _answers(server)
        state = server.spin()
    assert state is not None
    assert state["layers"] == OWNERS
    assert len(state["kept_blocks"]) == len(OWNERS)
    assert (answers == stock) == (sparsity == 0)
    assert (state["realised_sparsity"] > 0.3) == (sparsity > 0)
    _assert_followers_inherit(probe.calls(calls))


def _assert_followers_inherit(calls: list[dict]) -> None:
    steps = len(calls) // (LAYERS + len(OWNERS))
    assert steps >= TOKENS - 1
    order = [
        (kind, layer)
        for layer in range(LAYERS)
        for kind in (("indexer", "attention") if layer in OWNERS else ("attention",))
    ]
    assert [(c["call"], c["layer"]) for c in calls] == order * steps
    selection, distinct = "", set()
    for call in calls:
        if call["call"] == "indexer":
            selection = call["selection"]
            distinct.add(selection)
        assert call["selection"] == selection
    assert len(distinct) > steps  # owners choose differently
