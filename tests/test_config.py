"""Options: what is accepted, and what the one line says when it is not."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_spin.config import (
    POLICIES,
    SCORERS,
    SERVED_AUDITS,
    ConfigError,
    SpinConfig,
    from_env,
    from_file,
)

CONFIGS = st.builds(
    SpinConfig,
    enabled=st.booleans(),
    policy=st.sampled_from([policy for policy in POLICIES if policy != "spin-paper"]),
    sparsity=st.floats(0, 1, exclude_max=True),
    alpha=st.floats(0, 1, exclude_min=True),
    staleness=st.floats(0, 10),
    explore=st.floats(0, 0.5),
    seed=st.integers(0, 2**31 - 1),
    scorer=st.sampled_from(SCORERS),
    audit_every=st.integers(0, 32768),
)


@given(CONFIGS)
def test_the_environment_carries_every_value(config: SpinConfig) -> None:
    """What the launcher writes, a worker process reads back unchanged."""
    assert from_env(config.to_env()) == config


def test_a_server_audits_unless_told_otherwise() -> None:
    """A record that nobody serves has no audits; a server has, until it is told to have none."""
    assert SpinConfig().audit_every == 0
    assert from_env({}).audit_every == SERVED_AUDITS > 0
    assert from_env({"SPIN_AUDIT_EVERY": "0"}).audit_every == 0


def test_nothing_set_means_off() -> None:
    """Without a variable SPIN is off."""
    assert not from_env({"PATH": "/bin"}).enabled


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SPIN_SPARSTIY", "0.4", "valid options: enabled, policy, sparsity"),
        ("SPIN_SPARSITY", "1", "0 <= sparsity < 1, got 1.0"),
        ("SPIN_SPARSITY", "nan", "0 <= sparsity < 1"),
        ("SPIN_SPARSITY", "40%", "must be a number, got '40%'"),
        ("SPIN_POLICY", "spinn", "one of spin, spin-paper, prev-iter, random, dense"),
        ("SPIN_ENABLED", "maybe", "must be 0 or 1, got 'maybe'"),
        ("SPIN_ALPHA", "0", "0 < alpha <= 1"),
        ("SPIN_SEED", "-1", "seed must be 0 to"),
        ("SPIN_EXPLORE", "0.6", "0 to 0.5"),
        ("SPIN_AUDIT_EVERY", "-1", "audit_every must be 0 to 32768, got -1"),
        ("SPIN_AUDIT_EVERY", "often", "must be a whole number, got 'often'"),
        ("SPIN_MISS_SLO", "5", "0 <= miss_slo < 1, got 5.0"),
        ("SPIN_SCORER", "deepgemm", "one of engine, fused, got 'deepgemm'"),
    ],
)
def test_bad_variables_are_named(name: str, value: str, said: str) -> None:
    """An unknown variable or a bad value is one line with its name and what is valid."""
    with pytest.raises(ConfigError) as error:
        from_env({name: value})
    line = str(error.value)
    assert said in line
    assert "\n" not in line
    assert name.removeprefix("SPIN_").lower() in line.lower()


def test_the_fused_scorer_cannot_serve_every_score() -> None:
    """spin-paper with the fused scorer is refused by the names of both options."""
    with pytest.raises(ConfigError, match=r"scorer 'fused'.*policy 'spin-paper'"):
        from_env({"SPIN_SCORER": "fused", "SPIN_POLICY": "spin-paper"})


def test_a_file_overrides_field_by_field(tmp_path: Path) -> None:
    """A YAML file sets what it names and keeps the rest."""
    path = tmp_path / "spin.yaml"
    path.write_text("sparsity: 0.5\npolicy: prev-iter\n")
    config = from_file(path, SpinConfig(seed=3))
    assert (config.sparsity, config.policy, config.seed) == (0.5, "prev-iter", 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sparsity: [", "is not YAML"),
        ("- sparsity", "must hold a mapping"),
        ("depth: 3", "'depth'"),
        ("sparsity: high", "must be a number"),
        (None, "cannot read"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, text: str | None, said: str) -> None:
    """An unreadable, malformed or misspelt file is one line with its path."""
    path = tmp_path / "spin.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as error:
        from_file(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_every_field_is_documented() -> None:
    """Each option has its line in the docstring."""
    assert SpinConfig.__doc__ is not None
    assert all(f"{f.name}:" in SpinConfig.__doc__ for f in fields(SpinConfig))
