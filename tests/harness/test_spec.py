"""Specs: what is refused, and in which words."""

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.plan import describe_plan
from harness.spec import Spec
from harness.specfile import load_spec
from tests.harness.helpers import make_spec, write_spec

CONFIGS = sorted(Path("configs").glob("*.yaml"))


def problems(path: Path, *overrides: str) -> list[str]:
    """The lines a user would read."""
    with pytest.raises(ConfigError) as caught:
        load_spec(path, list(overrides))
    return list(caught.value.problems)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_are_valid(path: Path) -> None:
    """Every file in configs/ loads, begins with what it stands for, and has a plan."""
    assert path.read_text().startswith("# ")
    spec = load_spec(path, [])
    assert spec.name == path.stem
    assert "KV need" in describe_plan(spec)


def test_full_workload() -> None:
    """agentic.yaml is 507K cached + 5K new, 96 in flight, 16K out, against 40 % and 50 %."""
    spec = load_spec(Path("configs/agentic.yaml"), [])
    workload = spec.workload
    assert (workload.cached_tokens // 1000, workload.new_tokens // 1000) == (506, 5)
    assert workload.cached_tokens % 256 == 0
    assert (workload.concurrency, workload.output_tokens) == (96, 16384)
    sparsities = [arm.spin.target_sparsity for arm in spec.arms.values() if arm.spin]
    assert sparsities == [0.4, 0.5]


def test_overrides(tmp_path: Path) -> None:
    """--set changes nested keys, with YAML values."""
    path = write_spec(tmp_path)
    spec = load_spec(path, ["pairs=7", "workload.sharing=distinct", "limits.stall_s=2.5"])
    assert (spec.pairs, spec.workload.sharing, spec.limits.stall_s) == (7, "distinct", 2.5)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("pairz=3", "pairz: unknown key, remove it or correct its spelling"),
        ("workload.outputs=3", "workload.outputs: unknown key"),
        ("pairs=none", "pairs: Input should be a valid integer"),
        ("pairs=0", "pairs: Input should be greater than 0, got 0"),
        ("workload.requests=1", "requests (1) is below concurrency, lower concurrency"),
        ("workload.content.kind=prose", "workload.content: Input tag 'prose'"),
        ("arms.spin.command=python server.py", "command must contain {port}"),
        ("arms.Bad!.command=x {port}", "arms.Bad!"),
        ("name=../x", "name: String should match"),
        ("warmup.max_rounds=1", "max_rounds must be at least min_rounds"),
        ("pairs", "write --set key=value"),
        ("pairs.x=1", "`pairs` is a value, not a group of keys"),
        ("pairs=[", "the value is not valid YAML"),
    ],
)
def test_bad_values(tmp_path: Path, override: str, words: str) -> None:
    """Each bad value is one line that names the key and what is wrong."""
    (line,) = problems(write_spec(tmp_path), override)
    assert words in line


def test_two_problems_are_two_lines(tmp_path: Path) -> None:
    """All problems are told at once."""
    path = write_spec(tmp_path)
    assert len(problems(path, "pairs=0", "seed=-1")) == 2


def test_baseline_is_needed(tmp_path: Path) -> None:
    """Without the arm `stock`, or with it alone, there is nothing to compare."""
    arm = {"command": "x {port}"}
    path = tmp_path / "spec.yaml"
    for arms, words in [({"a": arm, "b": arm}, "`stock`"), ({"stock": arm}, "at least one arm")]:
        raw = make_spec().model_dump() | {"arms": arms}
        path.write_text(Spec.model_construct(**raw).model_dump_json(warnings=False))
        assert words in problems(path)[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", ":2: not valid YAML, key `a` is given twice"),
        ("a: [1\n", "not valid YAML"),
        ("- 1\n", "a spec is a mapping of keys"),
        ("", "a spec is a mapping of keys"),
    ],
)
def test_bad_yaml(tmp_path: Path, text: str, words: str) -> None:
    """Broken YAML and duplicate keys are one line with file and line number."""
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    (line,) = problems(path)
    assert str(path) in line
    assert words in line


def test_missing_file(tmp_path: Path) -> None:
    """A path that is not there is one line."""
    (line,) = problems(tmp_path / "none.yaml")
    assert "cannot be read (No such file or directory)" in line
