"""The launcher: what it would execute, and what it refuses in one line."""

from __future__ import annotations

import subprocess

import pytest

from sglang_spin.config import ConfigError, SpinConfig
from sglang_spin.launch import _parser, plan_launch, resolve_config
from sglang_spin.presets import GIB, PRESETS, fit_problem
from tests.preloaded.process import run


def _run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run(["sglang_spin.launch", *arguments], env, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "env", "said"),
    [
        (["--model=deepseek-v4-flash"], {}, "284B parameters"),
        (["--model=deepseek-v4-pro"], {}, "try --model tiny-v4"),
        (["--model=glm-5"], {}, "try --model tiny-dsa"),
        (
            ["--model=tiny"],
            {},
            "one of tiny-dsa, tiny-dsa-mtp, tiny-glm, tiny-v4, deepseek-v4-flash",
        ),
        (["--model=tiny-dsa", "--spin-sparsity=1.5"], {}, "0 <= sparsity < 1"),
        (["--model=tiny-dsa", "--spin-policy=none"], {}, "policy must be one of"),
        (["--model=tiny-dsa", "--spin-miss-slo=5"], {}, "0 <= miss_slo < 1, got 5.0"),
        (["--model=tiny-dsa", "--spin-miss-slo=0.1", "--spin-audit-every=0"], {}, "needs audit_ev"),
        (["--model=tiny-dsa", "--no-spin", "--spin-miss-slo=0.1"], {}, "contradicts"),
        (["--model=tiny-dsa", "--no-spin", "--spin-sparsity=0.5"], {}, "contradicts"),
        (["--model=tiny-dsa", "--spin-config=/nowhere.yaml"], {}, "cannot read /nowhere.yaml"),
        (["--model=tiny-dsa"], {"SGLANG_PLUGINS": "spin_cpu"}, "leaves out 'spin'"),
        (["--model=tiny-dsa", "--no-spin"], {"SGLANG_PLUGINS": "spin"}, "leaves out 'spin_cpu'"),
        (["--model=tiny-dsa"], {"SPIN_SPARSTIY": "0.3"}, "SPIN_SPARSTIY is unknown"),
    ],
)
def test_refusals_are_one_line(arguments: list[str], env: dict[str, str], said: str) -> None:
    """What cannot be served ends with status 1 and one line, without a traceback."""
    done = _run(*arguments, **env)
    assert done.returncode == 1
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_unknown_option_goes_to_sglang() -> None:
    """Options that are not ours are passed on, and replace a default of the same name."""
    done = _run("--model=tiny-dsa", "--dry-run", "--page-size=64", "--max-running-requests=2")
    assert done.returncode == 0
    assert "--max-running-requests=2" in done.stdout
    assert "--max-running-requests=8" not in done.stdout
    assert "SPIN_ENABLED=1" in done.stdout


def test_audits_and_slo_reach_the_server() -> None:
    """Both flags become variables of the server's processes."""
    done = _run("--model=tiny-dsa", "--dry-run", "--spin-audit-every=64", "--spin-miss-slo=0.05")
    assert "SPIN_AUDIT_EVERY=64" in done.stdout
    assert "SPIN_MISS_SLO=0.05" in done.stdout


def test_no_spin_leaves_it_off() -> None:
    """--no-spin writes SPIN_ENABLED=0, whatever the surrounding environment says."""
    done = _run("--model=tiny-dsa", "--no-spin", "--dry-run", SPIN_ENABLED="1")
    assert "SPIN_ENABLED=0" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "groups"),
    [(["--tp-size=2"], 2), (["--tp", "2", "--dp-size=2"], 4), ([], 0)],
)
def test_each_rank_is_given_cores(arguments: list[str], groups: int) -> None:
    """On the CPU engine several ranks get a group of cores each, without which SGLang ends."""
    done = _run("--model=tiny-dsa", "--dry-run", *arguments)
    words = [w.strip("'") for w in done.stdout.split() if "CPU_OMP_THREADS_BIND" in w]
    cores = [word.partition("=")[2].strip("'").split("|") for word in words]
    assert [len(each) for each in cores] == ([groups] if groups else [])


def test_a_flag_beats_the_file_beats_the_environment(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Precedence of the three ways to set an option."""
    path = tmp_path / "spin.yaml"
    path.write_text("sparsity: 0.3\npolicy: random\n")
    monkeypatch.setenv("SPIN_SPARSITY", "0.1")
    monkeypatch.setenv("SPIN_SEED", "9")
    options = _parser().parse_args(
        ["--model=tiny-dsa", f"--spin-config={path}", "--spin-policy=dense"]
    )
    config = resolve_config(options)
    assert (config.policy, config.sparsity, config.seed) == ("dense", 0.3, 9)
    assert config.enabled


def test_large_models_state_what_they_need() -> None:
    """Every preset says how much memory is missing, and is silent when there is enough."""
    for preset in PRESETS.values():
        assert fit_problem(preset, 4096 * GIB) is None
        problem = fit_problem(preset, 80 * GIB)
        assert problem is not None
        assert "80 GiB" in problem


def test_an_unknown_path_is_not_downloaded() -> None:
    """A misspelt name must not become a hub id."""
    with pytest.raises(ConfigError, match="no model 'tiny-dsaa'"):
        plan_launch("tiny-dsaa", SpinConfig(), [])
