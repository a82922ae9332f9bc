"""A patched copy of the installed SGLang, made once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

Applied = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def apply() -> Callable[..., Applied]:
    """Run patches/apply.py in an environment of its own."""

    def run(*arguments: str, **env: str) -> Applied:
        command = [sys.executable, str(ROOT / "patches" / "apply.py"), *arguments]
        return subprocess.run(
            command, env={**os.environ, **env}, capture_output=True, text=True, check=False
        )

    return run


@pytest.fixture(scope="session")
def patched(apply: Callable[..., Applied], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the copy; first on PYTHONPATH it is the SGLang that runs."""
    folder = tmp_path_factory.mktemp("patched") / "copy"
    done = apply(str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def python(patched: Path) -> Callable[..., Applied]:
    """Run Python with the copy, or with the installed package, on the CPU engine."""
    from sglang_spin.cpu import bootstrap

    def run(*arguments: str, copy: bool = True) -> Applied:
        paths = [str(patched), str(ROOT)] if copy else [str(ROOT)]
        env = bootstrap.environment({**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    return run
