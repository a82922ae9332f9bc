"""The real engine on tiny-dsa against transformers' DeepSeek-V3.2 in float32; docs/parity.md."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.e2e import _topk_probe as probe
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

LENGTHS = (300, 700, 1500, 2500)  # all beyond index_topk; the last needs two prefill chunks
STEPS = 40
LAYERS, VOCAB = 4, 1024
FORMATS = ("--dtype=float32", "--kv-cache-dtype=bfloat16")
VARIANTS = ("forced", "stored", "plain")

# On the largest difference of centred logits (standard deviation 8.7): 1.5 to 2.5 times what
# docs/parity.md measured, with the engine's selections (float32 rounding only) and with its own.
BOUNDS = {"forced": 0.01, "stored": 0.6}
TYPICAL_BOUND = 0.003  # own selections, median step: most steps select the very same tokens
OVERLAP = 0.998  # mean share of common selections in a layer, formats emulated
WORST_OVERLAP = 0.95  # in a single step
PLAIN_OVERLAP = 0.95  # mean in a layer, against transformers without the engine's formats


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Greedy continuations by a real server: tokens, full log-probabilities, selections."""
    folder = tmp_path_factory.mktemp("engine")
    env, log = probed_env(folder), folder / "server.log"
    with serve(log, "--no-spin", *FORMATS, env=env) as server:
        return engine_answers(
            server,
            LENGTHS,
            STEPS,
            VOCAB,
            folder / "records.bin",
            lambda records, tokens: probe.read(records, LAYERS, tokens),
        )


@pytest.fixture(scope="module")
def oracle(
    engine: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, np.ndarray]:
    """transformers' answers, teacher-forced on the engine's tokens."""
    folder = tmp_path_factory.mktemp("oracle")
    return ask_oracle("tests.e2e._hf_oracle", "tiny-dsa", engine, folder)


@pytest.fixture(scope="module")
def comparisons(
    engine: dict[str, np.ndarray],
    oracle: dict[str, np.ndarray],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Compared]:
    """Every full variant; the figures go to parity.json under `--basetemp`."""
    full = range(len(LENGTHS))
    compared = {name: compare(engine, oracle, name, full) for name in VARIANTS}
    figures = {name: each.figures(tuple(BOUNDS.values())) for name, each in compared.items()}
    path = tmp_path_factory.getbasetemp() / "parity.json"
    path.write_text(json.dumps(figures, indent=1))
    return compared


@pytest.fixture(scope="module")
def stored(comparisons: dict[str, Compared]) -> Compared:
    return comparisons["stored"]


@pytest.fixture(scope="module")
def plain(comparisons: dict[str, Compared]) -> Compared:
    return comparisons["plain"]


def test_oracle_is_transformers_own_model(oracle: dict[str, np.ndarray]) -> None:
    """transformers loads every weight; the indexer written again for rounding equals its own."""
    assert oracle["unmatched"].size == 0
    assert oracle["replica_gap"] <= 1e-4


@pytest.mark.parametrize("variant", BOUNDS)
def test_logits_agree(comparisons: dict[str, Compared], variant: str) -> None:
    """In the engine's storage formats the oracle's logits are the engine's, within the bound."""
    assert comparisons[variant].error.max() <= BOUNDS[variant]
    assert np.median(comparisons[variant].error) <= TYPICAL_BOUND


@pytest.mark.parametrize("variant", BOUNDS)
def test_tokens_agree_wherever_the_margin_exceeds_the_bound(
    comparisons: dict[str, Compared], variant: str
) -> None:
    """No token differs where the bound excludes it, which covers at least four steps in five."""
    clear = comparisons[variant].margin > BOUNDS[variant]
    assert clear.mean() >= 0.8
    assert comparisons[variant].equal[clear].all()


def test_selections_agree(stored: Compared, plain: Compared) -> None:
    """Each layer selects the oracle's tokens, but for rounding at the boundary of the top-k."""
    assert (stored.overlap.mean(1) >= OVERLAP).all()
    assert stored.overlap.min() >= WORST_OVERLAP
    assert (plain.overlap.mean(1) >= PLAIN_OVERLAP).all()


def test_untouched_transformers_agrees_up_to_the_formats(
    oracle: dict[str, np.ndarray], plain: Compared
) -> None:
    """Against plain float32 the engine is off by what its formats cost, computed without it."""
    cost = [
        np.abs(centred(oracle[f"plain_logits_{i}"]) - centred(oracle[f"stored_logits_{i}"]))
        for i in range(len(LENGTHS))
    ]
    bound = np.concatenate([c.max(-1) for c in cost]) + BOUNDS["stored"]
    assert (plain.error <= bound).all()
    assert plain.equal[plain.margin > bound].all()
    assert plain.equal.mean() >= 0.9


def test_selection_is_exercised(
    engine: dict[str, np.ndarray], oracle: dict[str, np.ndarray]
) -> None:
    """The agreement is not vacuous: attending to all tokens gives other logits by far."""
    dense = compare(engine, oracle, "dense", range(1))
    assert np.median(dense.error) > 5 * BOUNDS["stored"]
