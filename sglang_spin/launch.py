"""`python -m sglang_spin.launch`: start SGLang with SPIN on, or refuse in one line."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path

from sglang_spin.config import (
    POLICIES,
    PREFIX,
    SCORERS,
    ConfigError,
    SpinConfig,
    from_env,
    from_file,
)
from sglang_spin.cpu.bootstrap import SWITCH
from sglang_spin.cpu.models import MODELS as TINY_MODELS
from sglang_spin.engine.install import TARGETS
from sglang_spin.engine.ledger import require
from sglang_spin.presets import PRESETS, fit_problem

_PLUGIN_GROUP = "sglang.srt.plugins"


@dataclass(frozen=True, slots=True)
class Launch:
    """What will be executed: SGLang's arguments and the variables added to the environment."""

    arguments: tuple[str, ...]
    environment: dict[str, str]

    def __str__(self) -> str:
        words = [f"{k}={v}" for k, v in self.environment.items()]
        return shlex.join([*words, "python", "-m", "sglang.launch_server", *self.arguments])


def main(argv: list[str] | None = None) -> None:
    """Parse, check, print the command, and become the server."""
    options, rest = _parser().parse_known_args(argv)
    config = resolve_config(options)
    launch = plan_launch(options.model, config, rest)
    if config.enabled:
        require(TARGETS)
    require_plugins(config.enabled, launch)
    print(f"sglang_spin: {launch}", flush=True)
    if options.dry_run:
        return
    os.environ.update(launch.environment)
    command = [sys.executable, "-m", "sglang.launch_server", *launch.arguments]
    os.execv(sys.executable, command)


def resolve_config(options: argparse.Namespace) -> SpinConfig:
    """Options over --spin-config over SPIN_* variables. Raises ConfigError."""
    config = from_env()
    if options.spin_config is not None:
        config = from_file(options.spin_config, config)
    given = {
        "policy": options.spin_policy,
        "sparsity": options.spin_sparsity,
        "seed": options.spin_seed,
        "scorer": options.spin_scorer,
        "audit_every": options.spin_audit_every,
        "miss_slo": options.spin_miss_slo,
    }
    if options.no_spin and any(value is not None for value in given.values()):
        raise ConfigError("sglang_spin: --no-spin contradicts the other --spin-* options")
    changes = {key: value for key, value in given.items() if value is not None}
    return replace(config, enabled=not options.no_spin, **changes)


def require_plugins(enabled: bool, launch: Launch) -> None:
    """Raise ConfigError unless SGLang's processes will load the plugins that the launch needs."""
    names = ["spin"] if enabled else []
    if {**os.environ, **launch.environment}.get(SWITCH) == "1":
        names.append("spin_cpu")
    installed = {e.name for e in entry_points(group=_PLUGIN_GROUP)}
    if missing := [n for n in names if n not in installed]:
        raise ConfigError(
            f"sglang_spin: plugin {missing[0]!r} is not installed in this environment, so SGLang "
            "would run without it; run: pip install sglang-spin (or pip install -e . in a clone)"
        )
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed and (missing := [n for n in names if n not in allowed.split(",")]):
        raise ConfigError(
            f"sglang_spin: SGLANG_PLUGINS={allowed} leaves out {missing[0]!r}, so SGLang would run "
            f"without it; add it or unset the variable"
        )


def plan_launch(model: str, config: SpinConfig, rest: list[str]) -> Launch:
    """The server command for a preset name or a path. Raises ConfigError if this machine cannot."""
    if model in TINY_MODELS:
        return _cpu_launch(_tiny_model(model), config, rest)
    arguments: tuple[str, ...] = ()
    path = model
    if model in PRESETS:
        preset = PRESETS[model]
        if problem := fit_problem(preset, _gpu_bytes()):
            raise ConfigError(f"sglang_spin: {problem}")
        path, arguments = preset.path, preset.arguments
    elif "/" not in model and not Path(model).exists():
        known = ", ".join((*TINY_MODELS, *PRESETS))
        raise ConfigError(
            f"sglang_spin: no model {model!r}; give a path, a hub id or one of {known}"
        )
    if _gpu_bytes() == 0:
        return _cpu_launch(path, config, rest)
    defaults = _without_overridden(arguments, rest)
    return Launch((f"--model-path={path}", *defaults, *rest), config.to_env())


def _tiny_model(name: str) -> str:
    from sglang_spin.cpu.models import default_cache_dir, ensure_model

    return str(ensure_model(name, default_cache_dir()))


def _cpu_launch(path: str, config: SpinConfig, rest: list[str]) -> Launch:
    from sglang_spin.cpu import bootstrap, launch_defaults

    defaults = _without_overridden(launch_defaults.server_args(path), rest)
    ranks = launch_defaults.rank_environment(tuple(rest), os.cpu_count() or 1)
    full = ranks | bootstrap.environment(dict(os.environ))
    added = {name: value for name, value in full.items() if os.environ.get(name) != value}
    return Launch((f"--model-path={path}", *defaults, *rest), {**added, **config.to_env()})


def _without_overridden(defaults: tuple[str, ...], rest: list[str]) -> tuple[str, ...]:
    given = {word.split("=")[0] for word in rest if word.startswith("--")}
    return tuple(word for word in defaults if word.split("=")[0] not in given)


def _gpu_bytes() -> int:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return sum(torch.cuda.get_device_properties(i).total_memory for i in range(count))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sglang_spin.launch",
        description="Serve a model with SGLang and SPIN. Any other option goes to SGLang.",
        allow_abbrev=False,
    )
    known = ", ".join((*TINY_MODELS, *PRESETS))
    parser.add_argument("--model", required=True, help=f"a path, a hub id, or one of: {known}")
    parser.add_argument("--spin-sparsity", type=float, help="share of blocks to skip, 0 to <1")
    parser.add_argument("--spin-policy", help=f"one of: {', '.join(POLICIES)}")
    parser.add_argument("--spin-seed", type=int, help="seed of the counter-based random numbers")
    parser.add_argument("--spin-scorer", help=f"one of: {', '.join(SCORERS)}")
    parser.add_argument(
        "--spin-audit-every", type=int, help="measure the miss in one step of so many, 0 for never"
    )
    parser.add_argument(
        "--spin-miss-slo", type=float, help="most that a layer may miss; moves or adds budget"
    )
    parser.add_argument("--spin-config", type=Path, help=f"YAML file of {PREFIX}* options")
    parser.add_argument("--no-spin", action="store_true", help="serve stock SGLang")
    parser.add_argument("--dry-run", action="store_true", help="print the command and stop")
    return parser


if __name__ == "__main__":
    main()
