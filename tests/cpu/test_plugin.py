"""The plugin acts on the CPU engine only, and refuses in one line where it cannot."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from sglang_spin.cpu import bootstrap, patches, plugin
from sglang_spin.cpu.absent import absent
from sglang_spin.engine import ledger


def _python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("target", patches.PATCHES, ids=lambda target: target.name)
def test_every_patched_body_is_the_one_we_read(target: ledger.Target) -> None:
    """The installed SGLang has each ledgered function, unchanged."""
    assert str(ledger.inspect_target(target)).startswith("ok")
    assert target.why
    assert target.drop_when


def test_a_body_is_ledgered_once() -> None:
    """No target appears twice in the ledger."""
    names = [target.name for target in patches.PATCHES]
    assert len(names) == len(set(names))


def test_without_the_switch_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """register() leaves torch alone when the CPU engine is not asked for."""
    monkeypatch.delenv(bootstrap.SWITCH, raising=False)
    before = torch.cuda.get_device_capability
    plugin.register()
    assert torch.cuda.get_device_capability is before


def test_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the switch set on a CUDA machine the process ends with one line that says what to do."""
    monkeypatch.setenv(bootstrap.SWITCH, "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(SystemExit, match=r"^sglang_spin\.cpu: .*unset it.*$"):
        plugin.register()


def test_a_changed_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One ledgered function that differs ends the process before anything is patched."""
    changed = replace(patches.PATCHES[-1], expect="0" * 16)
    monkeypatch.setenv(bootstrap.SWITCH, "1")
    monkeypatch.setattr(patches, "PATCHES", (*patches.PATCHES[:-1], changed))
    before = torch.cuda.get_device_capability
    with pytest.raises(ledger.PatchDrift, match=f"{re.escape(changed.name)} is changed upstream"):
        plugin.register()
    assert torch.cuda.get_device_capability is before


def test_absent_names_import_and_raise_when_called() -> None:
    """A stand-in's attribute can be read, nested and subclassed; a call names what is missing."""
    kernel = absent("sgl_kernel.fast_topk")
    assert issubclass(type("Child", (kernel,), {}), kernel)
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.fast_topk\.variant was called"):
        kernel.variant(1, key=2)


def test_stand_ins_reach_spawned_children() -> None:
    """After prepare() a spawned process finds the stand-ins before anything installed."""
    done = _python(
        "from sglang_spin.cpu import bootstrap; bootstrap.prepare(); bootstrap.prepare()\n"
        "import sys; from concurrent.futures import ProcessPoolExecutor\n"
        "from importlib.util import find_spec; from multiprocessing import get_context\n"
        "with ProcessPoolExecutor(1, get_context('spawn')) as pool:\n"
        "    for name in ('sgl_kernel', 'torchvision'):\n"
        "        print('stand_ins' in pool.submit(find_spec, name).result().origin)\n"
        "print(sum('stand_ins' in entry for entry in sys.path))\n"
    )
    assert done.stdout.split() == ["True", "True", "1"], done.stderr


def test_prepare_after_sglang_is_refused() -> None:
    """prepare() after an import of sglang ends the process with one line."""
    done = _python(
        "import sys, types; sys.modules['sglang'] = types.ModuleType('sglang')\n"
        "from sglang_spin.cpu import bootstrap; bootstrap.prepare()"
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("must run before sglang is imported")
    assert "Traceback" not in done.stderr


def test_environment_keeps_what_the_caller_set() -> None:
    """environment() adds the defaults and the stand-ins and overrides nothing."""
    env = bootstrap.environment({"OMP_NUM_THREADS": "4", "PYTHONPATH": "/mine"})
    assert env["OMP_NUM_THREADS"] == "4"
    assert env[bootstrap.SWITCH] == "1"
    assert env["PYTHONPATH"].split(":") == [str(bootstrap.STAND_INS), "/mine"]
