"""SPIN's configuration: one frozen record, read from the environment in this module alone.

The environment is the carrier because SGLang's worker processes inherit it and its ServerArgs
takes no new fields. An unknown SPIN_* variable is an error: a misspelt option must not quietly keep
its default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

PREFIX = "SPIN_"
SCORERS = ("engine", "fused")
SERVED_AUDITS = 256  # steps from audit to audit of a row in a server that is not told otherwise
POLICIES = ("spin", "spin-paper", "prev-iter", "random", "dense")
VERIFY_UPDATES = ("accepted", "first")


class ConfigError(SystemExit):
    """A bad option. SystemExit, because SGLang's plugin loader logs and survives any Exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpinConfig:
    """What a server does. Defaults come from measured traces (docs/method.md).

    enabled: register anything at all.
    policy: how kept blocks are chosen, one of POLICIES.
    sparsity: share of a row's blocks to skip, 0 <= sparsity < 1.
    alpha: weight of the newest score in the moving averages, 0 < alpha <= 1 (spin only).
    staleness: bonus of a block not scored for n steps is staleness * spread * sqrt(n) (spin only).
    explore: share of the budget given to random blocks, 0 <= explore <= 0.5 (spin-paper only).
    seed: of the counter-based random numbers.
    scorer: what scores kept blocks, one of SCORERS: the engine's own kernel followed by a pass over
        its logits, or SPIN's, which observes in the same launch and needs no DeepGEMM.
    audit_every: one step in so many of a row is scored in full to measure the miss, 0 for none. A
        bare record has none; a server that is not told otherwise has SERVED_AUDITS.
    miss_slo: most that a layer may miss on average before it gets budget from other layers or, if
        they cannot give enough, sparsity is lowered; 0 for no bound, and every layer alike.
    verify_update: which rows of a speculative verify step enter the averages: all accepted ones, or
    (an ablation, and no extra memory) only the first.
    """

    enabled: bool = False
    policy: str = "spin"
    sparsity: float = 0.4
    alpha: float = 0.25
    staleness: float = 0.4
    explore: float = 0.05
    seed: int = 0
    scorer: str = "engine"
    audit_every: int = 0
    miss_slo: float = 0.0
    verify_update: str = "accepted"

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigError(_bad("policy", self.policy, f"one of {', '.join(POLICIES)}"))
        if self.scorer not in SCORERS:
            raise ConfigError(_bad("scorer", self.scorer, f"one of {', '.join(SCORERS)}"))
        if self.scorer == "fused" and self.policy == "spin-paper":
            raise ConfigError(
                "sglang_spin: scorer 'fused' gives block maxima, policy 'spin-paper' wants every "
                "score; use scorer 'engine' or another policy"
            )
        if self.verify_update not in VERIFY_UPDATES:
            valid = f"one of {', '.join(VERIFY_UPDATES)}"
            raise ConfigError(_bad("verify_update", self.verify_update, valid))
        _check_range("sparsity", self.sparsity, 0 <= self.sparsity < 1, "0 <= sparsity < 1")
        _check_range("alpha", self.alpha, 0 < self.alpha <= 1, "0 < alpha <= 1")
        _check_range("staleness", self.staleness, 0 <= self.staleness <= 10, "0 to 10")
        _check_range("explore", self.explore, 0 <= self.explore <= 0.5, "0 to 0.5")
        _check_range("seed", self.seed, 0 <= self.seed < 2**31, "0 to 2147483647")
        _check_range("audit_every", self.audit_every, 0 <= self.audit_every <= 32768, "0 to 32768")
        _check_range("miss_slo", self.miss_slo, 0 <= self.miss_slo < 1, "0 <= miss_slo < 1")
        if self.miss_slo and (not self.audit_every or self.policy == "dense"):
            raise ConfigError(
                "sglang_spin: miss_slo needs audit_every above 0 and a policy but dense"
            )

    def to_env(self) -> dict[str, str]:
        """The environment variables that from_env() turns back into this record."""
        return {PREFIX + k.upper(): _format(v) for k, v in asdict(self).items()}


def from_env(environ: Mapping[str, str] | None = None) -> SpinConfig:
    """Read SPIN_* variables. Raises ConfigError for an unknown name or a value out of range."""
    environ = os.environ if environ is None else environ
    raw = {k: v for k, v in environ.items() if k.startswith(PREFIX)}
    values: dict[str, Any] = {"audit_every": SERVED_AUDITS}
    for name, text in sorted(raw.items()):
        key = name.removeprefix(PREFIX).lower()
        values[key] = _parse(key, text, origin=f"environment variable {name}")
    return SpinConfig(**values)


def from_file(path: Path, base: SpinConfig | None = None) -> SpinConfig:
    """Read a YAML mapping of field names over base. Raises ConfigError naming file and key."""
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"sglang_spin: cannot read {path}: {error}") from None
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"sglang_spin: {path} is not YAML: {line}") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"sglang_spin: {path} must hold a mapping of: {', '.join(_PARSERS)}")
    values = {
        str(k): _parse(str(k), str(v), origin=f"key {k!r} of {path}") for k, v in loaded.items()
    }
    return SpinConfig(**{**asdict(base or SpinConfig()), **values})


def _boolean(text: str) -> bool:
    words = {"1": True, "true": True, "0": False, "false": False}
    return words[text.lower()]


_KINDS: dict[str, Callable[[str], Any]] = {
    "bool": _boolean,
    "float": float,
    "int": int,
    "str": str,
}
_PARSERS = {f.name: _KINDS[str(f.type)] for f in fields(SpinConfig)}


def _parse(key: str, text: str, origin: str) -> Any:
    if key not in _PARSERS:
        valid = ", ".join(_PARSERS)
        raise ConfigError(f"sglang_spin: {origin} is unknown; valid options: {valid}")
    try:
        return _PARSERS[key](text)
    except (ValueError, KeyError):
        kinds = {"bool": "0 or 1", "float": "a number", "int": "a whole number", "str": "text"}
        kind = next(kinds[name] for name, parser in _KINDS.items() if parser is _PARSERS[key])
        raise ConfigError(f"sglang_spin: {origin} must be {kind}, got {text!r}") from None


def _format(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _check_range(name: str, value: float, good: bool, valid: str) -> None:
    if not good:
        raise ConfigError(_bad(name, value, valid))


def _bad(name: str, value: object, valid: str) -> str:
    return f"sglang_spin: {name} must be {valid}, got {value!r}"
