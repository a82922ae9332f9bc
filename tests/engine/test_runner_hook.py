"""The forward hook: when a decode step counts as proof that SPIN is engaged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_spin.config import SpinConfig
from sglang_spin.engine import runtime as runtimes
from sglang_spin.engine.hooks import active
from sglang_spin.engine.hooks.runner import _around_forward


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> runtimes.Runtime:
    """A runtime with two indexer layers, all of whose hooks have fired."""
    config = SpinConfig(enabled=True)
    fresh = runtimes.Runtime(config, active(config))
    fresh.runner, fresh.state = object(), SimpleNamespace()  # type: ignore[assignment]
    fresh.layer_slots = {0: 0, 1: 1}
    fresh.evidence.fired = {hook.target.name for hook in fresh.hooks}
    monkeypatch.setattr(runtimes, "_runtime", fresh)
    monkeypatch.setattr("os.kill", lambda *_: None)
    return fresh


def _step(runtime: runtimes.Runtime, mode: ForwardMode, original: ForwardMode | None) -> None:
    batch = SimpleNamespace(forward_mode=mode, _original_forward_mode=original)
    _around_forward(lambda *_a, **_k: None, runtime.runner, batch)


def test_a_decode_step_without_spin_ends_the_server(
    runtime: runtimes.Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    """A layer that was not observed in a decode step is named."""
    runtime.observed = {0}
    with pytest.raises(SystemExit):
        _step(runtime, ForwardMode.DECODE, None)
    assert "indexer layer 1 ran without SPIN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "original"),
    [
        (ForwardMode.DECODE, ForwardMode.DECODE),  # ran inside another rank's prefill
        (ForwardMode.IDLE, None),
        (ForwardMode.EXTEND, None),
    ],
)
def test_other_steps_prove_nothing(
    runtime: runtimes.Runtime, mode: ForwardMode, original: Any
) -> None:
    """Idle ranks, prefills, and decode rows relabelled as a prefill do not end the server."""
    _step(runtime, mode, original)
    assert not runtime.proven


def test_a_full_decode_step_is_the_proof(runtime: runtimes.Runtime) -> None:
    """Once every layer has been observed, the proof is given for good."""
    runtime.observed = {0, 1}
    _step(runtime, ForwardMode.DECODE, None)
    assert runtime.proven


def test_allocations_prove_the_hooks_not_the_layers(
    runtime: runtimes.Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three decode allocations may all be relabelled; a hook that never fired is still found."""
    for _ in range(3):
        runtime.decode_allocated()
    runtime.evidence.fired = {n for n in runtime.evidence.fired if "_forward_raw" not in n}
    with pytest.raises(SystemExit):
        runtime.decode_allocated()
    assert "_forward_raw was never reached" in capsys.readouterr().err
