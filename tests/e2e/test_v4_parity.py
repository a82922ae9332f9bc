"""The real engine on tiny-v4 against transformers' DeepSeek-V4 in float32; docs/parity.md."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.e2e import _c4_probe, _topk_probe
from tests.e2e.parity import (
    Compared,
    ask_oracle,
    centred,
    compare,
    engine_answers,
    probed_env,
)
from tests.e2e.server import serve

pytestmark = pytest.mark.slow

LENGTHS = (2300, 300, 4400)  # beyond 2,048 tokens selection is sparse; chunks are of 2,048
STEPS = 32
VOCAB = 1024
VARIANTS = ("forced", "stored", "plain")

# On the largest difference of centred logits (standard deviation 8.2): about twice what
# docs/parity.md measured. It is reached where rounding moves a value across an fp8 boundary.
BOUNDS = {"forced": 0.25, "stored": 0.25}
TYPICAL_BOUND = 0.006  # median step
OVERLAP, WORST_OVERLAP = 0.998, 0.98  # share of common selections: mean of a layer, single step
PLAIN_OVERLAP = 0.98


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Greedy continuations by a real server: tokens, full log-probabilities, selections."""
    folder = tmp_path_factory.mktemp("v4-engine")
    env, log = probed_env(folder, _c4_probe.__name__), folder / "server.log"
    with serve(log, "--no-spin", env=env, model="tiny-v4") as server:
        layers = len(_c4_probe.C4_LAYERS)
        return engine_answers(
            server,
            LENGTHS,
            STEPS,
            VOCAB,
            folder / "records.bin",
            lambda records, tokens: _topk_probe.read(records, layers, tokens, _c4_probe.TOPK),
        )


@pytest.fixture(scope="module")
def oracle(
    engine: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, np.ndarray]:
    """transformers' answers, teacher-forced on the engine's tokens."""
    folder = tmp_path_factory.mktemp("v4-oracle")
    return ask_oracle("tests.e2e._v4_oracle", "tiny-v4", engine, folder)


@pytest.fixture(scope="module")
def comparisons(
    engine: dict[str, np.ndarray],
    oracle: dict[str, np.ndarray],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Compared]:
    """Every full variant; the figures go to parity-v4.json under `--basetemp`."""
    compared = {v: compare(engine, oracle, v, range(len(LENGTHS))) for v in VARIANTS}
    figures: dict = {v: each.figures(tuple(BOUNDS.values())) for v, each in compared.items()}
    figures["logits_std"] = float(np.std(centred(oracle["plain_logits_0"])))
    path = tmp_path_factory.getbasetemp() / "parity-v4.json"
    path.write_text(json.dumps(figures, indent=1))
    return compared


def test_oracle_is_transformers_own_model(oracle: dict[str, np.ndarray]) -> None:
    """transformers loads every weight; what is written again for rounding equals its own."""
    assert oracle["unmatched"].size == 0
    assert oracle["replica_gap"] <= 2e-3
    assert oracle["replica_same_choice"] >= 0.999


@pytest.mark.parametrize("variant", BOUNDS)
def test_logits_agree(comparisons: dict[str, Compared], variant: str) -> None:
    """In the engine's storage formats the oracle's logits are the engine's, within the bound."""
    assert comparisons[variant].error.max() <= BOUNDS[variant]
    assert np.median(comparisons[variant].error) <= TYPICAL_BOUND


@pytest.mark.parametrize("variant", BOUNDS)
def test_tokens_agree_wherever_the_margin_exceeds_the_bound(
    comparisons: dict[str, Compared], variant: str
) -> None:
    """No token differs where the bound excludes it, which covers three steps in four."""
    clear = comparisons[variant].margin > BOUNDS[variant]
    assert clear.mean() >= 0.75
    assert comparisons[variant].equal[clear].all()


def test_selections_agree(comparisons: dict[str, Compared]) -> None:
    """Each C4 layer selects the oracle's entries, but for rounding at the boundary of the top-k."""
    stored, plain = comparisons["stored"], comparisons["plain"]
    assert (stored.overlap.mean(1) >= OVERLAP).all()
    assert stored.overlap.min() >= WORST_OVERLAP
    assert (plain.overlap.mean(1) >= PLAIN_OVERLAP).all()


def test_untouched_transformers_agrees_up_to_the_formats(
    oracle: dict[str, np.ndarray], comparisons: dict[str, Compared]
) -> None:
    """Against plain float32 the engine is off by what its formats cost, computed without it."""
    plain = comparisons["plain"]
    cost = [
        np.abs(centred(oracle[f"plain_logits_{i}"]) - centred(oracle[f"stored_logits_{i}"]))
        for i in range(len(LENGTHS))
    ]
    bound = np.concatenate([c.max(-1) for c in cost]) + BOUNDS["stored"]
    assert (plain.error <= bound).all()
    assert plain.equal[plain.margin > bound].all()


def test_selection_is_exercised(
    engine: dict[str, np.ndarray], oracle: dict[str, np.ndarray]
) -> None:
    """The agreement is not vacuous: attending to all entries gives other logits by far."""
    last = len(LENGTHS) - 1
    dense = compare(engine, oracle, "dense", range(last, last + 1))
    assert np.median(dense.error) > 5 * BOUNDS["stored"]
