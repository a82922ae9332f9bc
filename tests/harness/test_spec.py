"""Specs: what is refused, and in which words."""

import sys
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.noise import check_margins
from harness.plan import describe_plan
from harness.schema import schema_text
from harness.server import command_line
from harness.spec import Spec
from harness.specfile import load_spec
from harness.wall import expected_wall_s
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
    plan = describe_plan(spec)
    for part in ("flush", "KV need", "bodies", "output", "time"):
        assert part in plan


def test_schema_is_that_of_the_spec() -> None:
    """configs/schema.json is what `harness schema` prints."""
    assert Path("configs/schema.json").read_text() == schema_text()


def test_ci_config_keeps_its_noise_floor() -> None:
    """The committed floor is of the committed workload, and allows the committed margins."""
    spec = load_spec(Path("configs/ci.yaml"), [])
    assert spec.gate is not None
    assert spec.gate.noise_floor is not None
    check_margins(spec)


def test_plan_compares_the_need_with_the_capacity() -> None:
    """The plan says whether the KV need fits into what the spec says a server holds."""
    assert "345 entries, fits into 345" in describe_plan(make_spec(requires={"kv_tokens": 345}))
    assert "DOES NOT FIT into 344" in describe_plan(make_spec(requires={"kv_tokens": 344}))


def test_plan_adds_up_the_wall_time() -> None:
    """By hand: 2 starts of 10 s; per run 2 warm-ups, one priming, one load at the given rates."""
    expect = {"start_s": 10, "prefill_tok_s": 64, "output_tok_s": 2}
    spec = make_spec(pairs=3, expect=expect)
    warm = 2 * 2 * (64 / 64 + 4 / 2)
    prime = 256 / 64 + 1 / (2 / 2)
    load = 2 * 32 / 64 + 2 * 12 / 2
    assert expected_wall_s(spec) == pytest.approx(2 * 10 + 6 * (warm + prime + load))
    assert expected_wall_s(make_spec()) is None
    open_loop = make_spec(
        pairs=3, window="full_run", expect=expect,
        workload={"arrival": {"kind": "constant", "per_s": 0.01}},
    )  # fmt: skip
    # the second of two requests is due after 100 s
    assert expected_wall_s(open_loop) == pytest.approx(2 * 10 + 6 * (warm + prime + 100))


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
        ("workload.content.kind=prose", "workload.content.kind: must be one of 'random-ids'"),
        ("arms.spin.command=python server.py", "command must contain {port}"),
        ("arms.Bad!.command=x {port}", "arms.Bad!"),
        ("name=../x", "name: String should match"),
        ("warmup.max_rounds=1", "max_rounds must be at least min_rounds"),
        ("pairs", "write --set key=value"),
        ("pairs.x=1", "`pairs` is a value, not a group of keys"),
        ("pairs=[", "the value is not valid YAML"),
        ("workload.groups=2", "`sharing: groups` and `groups: N` belong together"),
        ("workload.sharing=groups", "`sharing: groups` and `groups: N` belong together"),
        ("workload.turns=2", "turns above 1 and recorded_tokens belong together"),
        ("workload.arrival={kind: poisson}", "workload.arrival.poisson.per_s: missing, add it"),
        ("workload.arrival={kind: poisson, per_s: 2}", "set window: full_run"),
        ("workload.kind=prose", "workload.kind: must be one of 'context', 'trace', got 'prose'"),
        ("workload=5", "workload: must be a group of keys, got 5"),
        ("workload.content={}", "workload.content: `kind` is missing, add it"),
        ("arms.stock=5", "arms.stock: must be a group of keys, got 5"),
        ("arms.spin.command=x {port} 'y", "command cannot be split into words"),
        ("arms.spin.base_url='http://x:1'", "an arm has either `command` or `base_url`"),
        ("gate.max_pairs=0", "gate.max_pairs: Input should be greater than 0"),
        ("gate.margin=0.1", "gate.margin: unknown key"),
        ("gate={max_pairs: 2}", "gate.max_pairs must be at least pairs"),
        ("itl=tokens", "itl: Input should be 'token', 'chunk', 'arrival' or 'request_mean'"),
    ],
)
def test_bad_values(tmp_path: Path, override: str, words: str) -> None:
    """Each bad value is one line that names the key and what is wrong."""
    (line,) = problems(write_spec(tmp_path, pairs=3), override)
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


def test_arguments_of_an_arm(tmp_path: Path) -> None:
    """args follow the command as they are, blanks included; `python` is the harness's own."""
    spec = load_spec(write_spec(tmp_path), ["arms.spin.args=[--name, two words]"])
    words = command_line(spec.arms["spin"], port=31000)
    assert words[0] == sys.executable
    assert words[-2:] == ["--name", "two words"]
    assert "31000" in words


def test_arm_at_a_base_url(tmp_path: Path) -> None:
    """A running server is an arm by its URL alone; swapping it or giving it options is refused."""
    path = write_spec(tmp_path)
    running = "arms.other={base_url: 'http://host:30000'}"
    assert load_spec(path, [running]).arms["other"].base_url == "http://host:30000"
    (line,) = problems(path, running, "servers=swap")
    assert "a server at base_url is always up" in line
    (line,) = problems(path, "arms.other={base_url: 'http://host:30000', args: [--x]}")
    assert "args and env belong to a command" in line
    (line,) = problems(path, "arms.other={base_url: 'host:30000'}")
    assert "arms.other.base_url: String should match" in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", ":2: not valid YAML, key `a` is given twice"),
        ("a: [1\n", "not valid YAML"),
        ("? [a]\n: 1\n", ":1: not valid YAML, a key is a plain word"),
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
