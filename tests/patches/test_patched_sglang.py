"""What the patched copy does: bugs are gone, failing plugins are fatal, SPIN attaches to seams."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.e2e.prompts import prompt
from tests.e2e.server import Server, serve
from tests.patches.conftest import ROOT, Applied

Python = Callable[..., Applied]

ROPE = """
import json, torch
from types import SimpleNamespace
from sglang.srt.layers.rotary_embedding.rope_variant import DeepseekScalingRotaryEmbedding as Rope
g = torch.Generator().manual_seed(0)
angle = torch.rand(9, 4, generator=g)
me = SimpleNamespace(rotary_dim=8, head_size=12, is_neox_style=True,
                     cos_sin_cache=torch.cat([angle.cos(), angle.sin()], -1))
q, k = torch.randn(5, 3, 12, generator=g), torch.randn(5, 1, 12, generator=g)
at = torch.tensor([0, 8, 3, 3, 1])
got = Rope.forward_native(me, at, q, k)
want = []
for x in (q, k):
    z = torch.complex(x[..., :4], x[..., 4:8]) * torch.polar(torch.ones(5, 4), angle[at])[:, None]
    want.append(torch.cat([z.real, z.imag, x[..., 8:]], -1))
same = [a.shape == b.shape and torch.allclose(a, b, atol=1e-6) for a, b in zip(got, want)]
print(json.dumps(same))
"""

FAILING_PLUGIN = """
from sglang.srt.plugins import load_plugins
load_plugins()
print("went on")
"""


def test_yarn_in_torch_rotates_neox_pairs(python: Python) -> None:
    """Patched, query and key are turned by their angles; the wheel's body does not do it."""
    done = python("-c", ROPE)
    assert json.loads(done.stdout.splitlines()[-1]) == [True, True], done.stderr
    wheel = python("-c", ROPE, copy=False)
    assert wheel.returncode != 0 or json.loads(wheel.stdout.splitlines()[-1]) != [True, True]


@pytest.mark.parametrize("copy", [True, False], ids=["patched", "wheel"])
def test_a_failing_plugin_is_fatal(python: Python, tmp_path: Path, copy: bool) -> None:
    """Patched, a plugin that raises ends the process with its name; the wheel goes on without."""
    info = tmp_path / "bad-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nbad = bad_plugin:register\n")
    (tmp_path / "bad_plugin.py").write_text("def register():\n    raise ValueError('broken')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{FAILING_PLUGIN}"
    done = python("-c", code, copy=copy)
    assert ("went on" in done.stdout) == (not copy)
    assert (done.returncode != 0) == copy
    if copy:
        assert "plugin bad failed: broken" in done.stderr


@pytest.fixture
def seams(patched: Path) -> ModuleType:
    """A fresh module of seams, by itself."""
    spec = importlib.util.spec_from_file_location("seams", patched / "sglang/srt/plugins/seams.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_handlers_of_each_kind_meet_the_function(seams: ModuleType) -> None:
    """BEFORE may change arguments, AFTER the result, AROUND both; None keeps what there is."""

    @seams.seam
    def double(x: int) -> int:
        return 2 * x

    name = f"{__name__}:{double.__qualname__}"
    assert seams.is_declared(name)
    assert double(1) == 2
    seams.attach(name, "BEFORE", lambda x: ((x + 1,), {}))
    assert double(1) == 4
    seams.attach(name, "AFTER", lambda result, x: result * 10)
    seams.attach(name, "AFTER", lambda result, x: None)
    assert double(1) == 40
    seams.attach(name, "AROUND", lambda original, x: original(x + 1) + 1)
    assert double(1) == 61


def test_handlers_may_come_before_the_function(seams: ModuleType) -> None:
    """A handler attached before its module is imported is called; a wrong kind is an error."""

    def twice(x: int) -> int:
        return 2 * x

    name = f"{__name__}:{twice.__qualname__}"
    seams.attach(name, "AFTER", lambda result, x: result + 1)
    assert not seams.is_declared(name)
    assert seams.seam(twice)(3) == 7
    with pytest.raises(ValueError, match="no kind of handler"):
        seams.attach(name, "REPLACE", twice)


LENGTHS = (65, 640, 2500)
TOKENS = 70  # past a page boundary


def _answers(server: Server) -> list[tuple]:
    prompts = [prompt(n, seed=n) for n in LENGTHS]
    replies = server.generate(prompts, TOKENS, return_logprob=True)
    longer = [p + prompt(37, seed=5) for p in prompts]
    replies += server.generate(longer, 8, return_logprob=True)
    assert sum(r["meta_info"]["cached_tokens"] > 0 for r in replies) >= 3
    return [(r["output_ids"], r["meta_info"]["output_token_logprobs"]) for r in replies]


@pytest.mark.slow
def test_identity_holds_through_the_callbacks(patched: Path, tmp_path: Path) -> None:
    """SPIN that skips nothing, attached to the patched copy's seams, answers as the wheel does."""
    with serve(tmp_path / "wheel.log", "--no-spin") as server:
        stock = _answers(server)
    env = {"PYTHONPATH": os.pathsep.join([str(patched), str(ROOT)])}
    with serve(tmp_path / "patched.log", "--spin-policy=dense", env=env) as server:
        answers = _answers(server)
        state = server.spin()
    assert answers == stock
    assert state is not None
    assert state["attached_by"] == "callbacks"
    assert state["kept_blocks"] == state["seen_blocks"]
    # events arrived through the callbacks of rows and pages
    assert state["rows_seeded"] >= 3
    assert state["steps"] >= TOKENS
