"""A server whose SGLang is not the one the patches were written for ends, and says why."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from sglang_spin.engine import ledger
from sglang_spin.engine.hooks import ALL
from sglang_spin.engine.install import TARGETS
from sglang_spin.engine.ledger import (
    PROVEN,
    Target,
    fingerprint,
    inspect_target,
    is_patched,
    require,
)
from tests.e2e.server import command, free_port
from tests.engine.doctored import doctored_sglang
from tests.preloaded.process import start

BACKEND = "srt/layers/attention/dsa_backend.py"
METADATA_BODY = "force_unfused = not self.use_fused_topk or ("


def run_server(
    env: dict[str, str], *arguments: str, bare: bool = False, timeout: int = 300
) -> tuple[int, str]:
    """Start a server that is expected to end by itself; its exit status and output.

    bare: start SGLang itself with SPIN_ENABLED, so that the plugin alone must notice.
    """
    argv = command(f"--port={free_port()}", *arguments)
    if bare:
        argv, env = _bare(argv, {**os.environ, **env})
    with tempfile.TemporaryFile() as output:
        process = start(argv, env, output, output)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        output.seek(0)
        return code, output.read().decode()


def _bare(argv: list[str], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    from sglang_spin.config import SpinConfig
    from sglang_spin.cpu import bootstrap
    from sglang_spin.launch import _parser, plan_launch

    options, rest = _parser().parse_known_args(argv[1:])
    launch = plan_launch(options.model, SpinConfig(enabled=True), rest)
    full = {**bootstrap.environment(env), **SpinConfig(enabled=True).to_env()}
    return ["sglang.launch_server", *launch.arguments], full


def _one_line(output: str, needle: str) -> str:
    lines = [line for line in output.splitlines() if line.startswith("sglang_spin:")]
    lines = [line for line in lines if "launch_server" not in line]
    assert len(lines) == 1, output[-3000:]
    assert needle in lines[0]
    return lines[0]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name.rpartition(":")[2])
def test_every_target_is_as_it_was_read(target: Target) -> None:
    """Each ledger entry finds its upstream body unchanged, and says why it is there."""
    assert inspect_target(target).status == "ok"
    assert target.why
    assert target.drop_when


def test_ledger_names_are_unique() -> None:
    """No upstream body is hooked twice."""
    names = [hook.target.name for hook in ALL]
    assert len(names) == len(set(names))


def test_sources_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process has proven is not parsed again, by it or by those that inherit its variables;
    another ledger, or a file that is not the same any more, is."""
    monkeypatch.setenv(PROVEN, "")
    require(TARGETS)
    monkeypatch.setattr(ledger, "_parse", _no_parsing)
    require(TARGETS)
    assert not any(is_patched(target.name) for target in TARGETS)
    with pytest.raises(_Parsed):
        require(TARGETS[1:])
    proven = os.environ[PROVEN]
    monkeypatch.setenv(PROVEN, proven[1:])
    with pytest.raises(_Parsed):
        require(TARGETS)
    monkeypatch.setenv(PROVEN, proven)
    path = ledger._module_file(TARGETS[0].name.partition(":")[0])
    for fact in ("st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", _with_another(fact, path))
            with pytest.raises(_Parsed):
                require(TARGETS)


def _with_another(fact: str, changed: Path) -> Callable[..., Any]:
    """Path.stat, but for one fact of one file."""
    stat = Path.stat

    def changed_stat(path: Path, **how: bool) -> Any:
        found = stat(path, **how)
        if path != changed:
            return found
        facts = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return SimpleNamespace(**{**facts, fact: facts[fact] + 1})

    return changed_stat


class _Parsed(Exception):
    pass


def _no_parsing(path: Path) -> NoReturn:
    raise _Parsed


@pytest.mark.parametrize("bare", [False, True], ids=["launcher", "plain sglang"])
def test_a_changed_body_ends_the_server(tmp_path: Path, bare: bool) -> None:
    """One more statement in a hooked method: exit, one line with the method's name."""
    changed = f"unused = 1\n        {METADATA_BODY}"
    require(TARGETS)  # that the installed package is in order says nothing about another
    assert os.environ[PROVEN]
    env = doctored_sglang(tmp_path, BACKEND, METADATA_BODY, changed)
    code, output = run_server(env, bare=bare)
    assert code != 0
    _one_line(output, "DeepseekSparseAttnBackend.get_indexer_metadata is changed upstream")
    assert "Traceback" not in output


def test_comments_and_docstrings_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cosmetic upstream edit must not stop anyone's server."""
    name = "sglang.srt.layers.attention.dsa_backend:DeepseekSparseAttnBackend.get_indexer_metadata"
    before = fingerprint(name)
    env = doctored_sglang(tmp_path, BACKEND, METADATA_BODY, f"# a comment\n        {METADATA_BODY}")
    monkeypatch.syspath_prepend(env["PYTHONPATH"])
    monkeypatch.delitem(__import__("sys").modules, "sglang", raising=False)
    assert fingerprint(name) == before


def test_a_missing_target_ends_the_server(tmp_path: Path) -> None:
    """A renamed method: exit, one line with the old name."""
    env = doctored_sglang(
        tmp_path, BACKEND, "    def get_indexer_metadata(\n", "    def index_metadata(\n"
    )
    code, output = run_server(env)
    assert code != 0
    _one_line(output, "DeepseekSparseAttnBackend.get_indexer_metadata is missing upstream")
    assert "Traceback" not in output


@pytest.mark.parametrize("bare", [False, True], ids=["launcher", "plain sglang"])
def test_another_version_ends_the_server(tmp_path: Path, bare: bool) -> None:
    """SGLang 0.5.24 is not guessed at: exit, one line with both versions."""
    env = doctored_sglang(tmp_path, "METADATA", "\nVersion: 0.5.23", "\nVersion: 0.5.24")
    code, output = run_server(env, bare=bare)
    assert code != 0
    _one_line(output, "needs sglang==0.5.23, found 0.5.24")
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_hook_that_never_fires_ends_the_server(tmp_path: Path) -> None:
    """Upstream calls round a hook without changing its body: the first request ends it."""
    call = "as recorder_outputs,\n        ):\n            output = self._forward_raw("
    round_it = call.replace("self._forward_raw(", "type(self)._forward_raw.__wrapped__(self, ")
    env = doctored_sglang(tmp_path, "srt/model_executor/model_runner.py", call, round_it)
    code, output = run_server(env)
    assert code != 0
    _one_line(output, "ModelRunner._forward_raw was never reached")


@pytest.mark.slow
def test_an_unsupported_option_ends_the_server() -> None:
    """An option under which SPIN would be inactive is refused by name before the model loads."""
    code, output = run_server({}, "--enable-mixed-chunk")
    assert code != 0
    _one_line(output, "--enable-mixed-chunk is not supported")
    assert "Traceback" not in output
