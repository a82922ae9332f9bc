"""`harness gate`, `compare`, `calibrate` and the noise floor."""

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.campaign import Campaign
from harness.command import RunCommand, calibrate
from harness.errors import ConfigError, HarnessError, ResultError
from harness.finish import spec_text
from harness.judge import GateCommand, compare, gate
from harness.noise import calibration_spec, check_margins, foreign_floor, noise_floor
from harness.progress import Progress
from harness.results import ResultFolder
from harness.runrecord import ArmRun
from harness.summary import summarise
from tests.harness.helpers import MS, make_spec, record, write_spec
from tests.harness.test_validity import COUNTERS

ABOUT: dict[str, Any] = {
    "cpu": "c", "cores": 2, "memory_gib": 8, "gpu_memory_mib": [], "packages": {},
    "written_unix_s": 0.0, "servers": {},
}  # fmt: skip


def paced_run(arm: str, pair: int, itl_ms: float, **values: Any) -> ArmRun:
    """A sound run of two streams at a steady pace."""
    chunks = [(10 + itl_ms * i, 1) for i in range(12)]
    records = [record(chunks, prompt_tokens=288, cached_tokens=256, **values) for _ in range(2)]
    for index, made in enumerate(records):
        made.index = index
    spin = COUNTERS if arm == "spin" else None
    return ArmRun(arm, pair, 0, expected_cached=256, records=records, spin=spin)


def result(
    root: Path, speeds: Sequence[float], *, noise: Sequence[float] = (0,), **changes: Any
) -> Path:
    """A result on disk: in pair i spin's ITL is 10 ms x speeds[i]."""
    campaign = Campaign(make_spec(pairs=len(speeds), **changes))
    for pair, speed in enumerate(speeds):
        drift = 10 * math.exp(noise[pair % len(noise)])
        campaign.runs += [paced_run("stock", pair, drift), paced_run("spin", pair, drift * speed)]
    folder = ResultFolder.create(root, "test")
    folder.write_text("spec.yaml", spec_text(campaign.spec))
    folder.write_json("summary.json", summarise(campaign))
    return folder.path


def judged(path: Path, **options: Any) -> tuple[int, str]:
    """Exit code and output of `harness gate`."""
    out = io.StringIO()
    return gate(GateCommand(path, **options), Progress(out)), out.getvalue()


@pytest.mark.parametrize(
    ("speeds", "code", "words"),
    [
        ([0.9, 0.91, 0.9], 0, "verdict: PASS"),
        ([1.1, 1.11, 1.1], 1, "verdict: FAIL"),
        ([1.0, 1.3, 0.8], 3, "verdict: INCONCLUSIVE"),
    ],
)
def test_gate_of_one_result(tmp_path: Path, speeds: list[float], code: int, words: str) -> None:
    """Exit code and words say the same, with the default margins where the spec has no gate."""
    found, out = judged(result(tmp_path, speeds))
    assert (found, words in out) == (code, True)


def test_gate_of_an_invalid_result(tmp_path: Path) -> None:
    """A result that is not valid is no FAIL and no PASS but exit 2."""
    path = result(tmp_path, [0.9, 0.9], limits={"loop_lag_share": 0.0, "instant_gap_share": 0.0})
    summary = json.loads((path / "summary.json").read_text())
    summary |= {"valid": False, "invalid_reasons": ["pair 1 spin: x"]}
    (path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ResultError, match="is not valid") as caught:
        judged(path)
    assert caught.value.exit_code == 2


def test_t31_gate_without_a_summary(tmp_path: Path) -> None:
    """A campaign that did not end gives no verdict."""
    path = result(tmp_path, [0.9, 0.9])
    (path / "summary.json").unlink()
    with pytest.raises(ResultError, match="the campaign did not end"):
        judged(path)


def test_t31_gate_without_a_result(tmp_path: Path) -> None:
    """A folder that holds no result is exit 2: 1 would say that it failed."""
    with pytest.raises(ResultError, match="is no result folder") as caught:
        judged(tmp_path)
    assert caught.value.exit_code == 2


def test_gate_with_other_margins(tmp_path: Path) -> None:
    """Margins can be changed afterwards, nothing else can."""
    path = result(tmp_path, [1.1, 1.11, 1.1])
    wide = ("gate.margins.output_tok_s=0.2", "gate.margins.itl_p50=0.2")
    assert judged(path, overrides=wide)[0] == 0
    with pytest.raises(ConfigError, match="only keys of `gate`"):
        judged(path, overrides=("pairs=1",))


@pytest.mark.parametrize(
    ("speeds", "code"), [([0.81, 0.8, 0.8], 0), ([0.9, 0.91, 0.9], 1), ([0.7, 1.1, 0.8], 3)]
)
def test_gate_against_a_baseline(tmp_path: Path, speeds: list[float], code: int) -> None:
    """What is compared is the gain over stock: 10 % is a regression where 20 % was."""
    baseline = result(tmp_path, [0.8, 0.81, 0.8])
    new = result(tmp_path, speeds)
    assert judged(new)[0] == (0 if code < 3 else 3)
    markdown = tmp_path / "out.md"
    markdown.write_text("before\n")
    found, out = judged(new, baseline=baseline, markdown=markdown)
    assert found == code
    assert "this result over the baseline" in out
    text = markdown.read_text()
    assert text.startswith("before\n")
    assert f"**{['PASS', 'FAIL', '', 'INCONCLUSIVE'][code]}**" in text


def test_drift_between_campaigns_does_not_matter(tmp_path: Path) -> None:
    """A machine that is 30 % slower on another day leaves the gain, and the verdict, alone."""
    baseline = result(tmp_path, [0.8, 0.801, 0.8])
    slower = result(tmp_path, [0.8, 0.801, 0.8], noise=[0.3])
    assert judged(slower, baseline=baseline)[0] == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"window": "full_run"}, "its window"),
        ({"itl": "chunk"}, "its itl"),
        (
            {"workload": {"sharing": "distinct"}},
            r"its work \(2 conversations.* is not that of .* \(2 conv",
        ),
        ({"warmup": {"output_tokens": 5}}, "its content, think time or warm-up"),
    ],
)
def test_different_measurements_are_not_compared(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """Another window, ITL convention or workload is refused."""
    paths = [result(tmp_path, [0.9, 0.9]), result(tmp_path, [0.9, 0.9], **changes)]
    with pytest.raises(ResultError, match=words):
        compare(paths, Progress(io.StringIO()))


def test_compare_shows_every_arm(tmp_path: Path) -> None:
    """A row for every arm of every result, with its ratio to the first and the paired one."""
    paths = [result(tmp_path, [0.9, 0.9]), result(tmp_path, [0.8, 0.8])]
    out = io.StringIO()
    assert compare(paths, Progress(out)) == 0
    lines = out.getvalue().splitlines()
    assert len(lines) == 2 + 4
    # 10 x 0.9 ms against 10 x 0.8 ms: 0.889; against stock 0.8
    assert "| 8.00 | 0.889 (0.889 to 0.889) |" in lines[-1]
    assert lines[-1].endswith("| 0.800 (0.800 to 0.800) |")
    with pytest.raises(ResultError, match="at least two"):
        compare(paths[:1], Progress(io.StringIO()))


def calibration(tmp_path: Path, sds: Sequence[float]) -> tuple[Any, Path]:
    """A spec, and the noise floor of pairs that differ by these logs."""
    spec = make_spec(pairs=len(sds))
    calibrated = calibration_spec(spec)
    campaign = Campaign(calibrated)
    for pair, difference in enumerate(sds):
        for arm, factor in (("stock", 1.0), ("stock-again", math.exp(difference))):
            campaign.runs.append(paced_run(arm, pair, 10 * factor))
    path = tmp_path / "noise.json"
    path.write_text(json.dumps(noise_floor(calibrated, summarise(campaign), ABOUT)))
    return spec, path


def test_noise_floor_by_hand(tmp_path: Path) -> None:
    """Half-width = t sd / sqrt(n): logs 0.01, -0.01, 0 give 4.303 x 0.01 / sqrt 3."""
    _, path = calibration(tmp_path, [0.01, -0.01, 0.0])
    itl = json.loads(path.read_text())["metrics"]["itl_p50"]
    assert itl["sd_log"] == pytest.approx(0.01, rel=1e-4)
    assert itl["half_width"] == pytest.approx(4.303 * 0.01 / math.sqrt(3), rel=1e-3)
    # times are whole nanoseconds
    assert itl["mean_log"] == pytest.approx(0, abs=1e-6)


def test_margin_below_twice_the_noise_is_refused(tmp_path: Path) -> None:
    """The margin must be twice the half-width that the allowed pairs give; more pairs help."""
    _, path = calibration(tmp_path, [0.01, -0.01, 0.0])
    gate_spec = {"noise_floor": str(path), "margins": {"output_tok_s": 0.04, "itl_p50": 0.06}}
    with pytest.raises(ConfigError) as caught:
        check_margins(make_spec(pairs=3, gate=gate_spec))
    (line,) = caught.value.problems
    assert line.startswith("gate.margins.output_tok_s: 0.04 is below 0.0497, the least that")
    check_margins(make_spec(pairs=3, gate=gate_spec | {"max_pairs": 6}))


def test_identical_servers_that_differ_bound_the_margin(tmp_path: Path) -> None:
    """What two starts of one server differ by is no regression, however well it repeats."""
    _, path = calibration(tmp_path, [0.1, 0.1, 0.1001])
    itl_alone = {"output_tok_s": None, "itl_p50": 0.10}
    gate_spec = {"noise_floor": str(path), "margins": itl_alone}
    with pytest.raises(ConfigError, match=r"0\.1 is below 0\.1052"):
        check_margins(make_spec(pairs=3, gate=gate_spec))
    wider = gate_spec | {"margins": itl_alone | {"itl_p50": 0.11}}
    check_margins(make_spec(pairs=3, gate=wider))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no noise floor, run `harness calibrate"),
        ("{", "is no noise floor"),
        ('{"schema": 99, "metrics": {}}', "another harness version"),
    ],
)
def test_unusable_noise_floor(tmp_path: Path, content: str | None, words: str) -> None:
    """A floor that is missing or broken is one line, not a gate without a floor."""
    path = tmp_path / "noise.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        check_margins(make_spec(gate={"noise_floor": str(path)}))


def test_noise_floor_of_another_workload(tmp_path: Path) -> None:
    """A floor counts for the workload it was measured with."""
    _, path = calibration(tmp_path, [0.01, -0.01, 0.0])
    other = make_spec(workload={"output_tokens": 99}, gate={"noise_floor": str(path)})
    with pytest.raises(ConfigError, match="another workload"):
        check_margins(other)


def test_floor_of_another_machine_is_noted(tmp_path: Path) -> None:
    """A floor of other hardware is told; one that vanished meanwhile is told, not fatal."""
    spec, path = calibration(tmp_path, [0.01, -0.01, 0.0])
    named = make_spec(pairs=3, gate={"noise_floor": str(path)})
    assert foreign_floor(spec, ABOUT) is None
    assert foreign_floor(named, ABOUT) is None
    note = foreign_floor(named, ABOUT | {"cpu": "other"})
    assert note == "the noise floor is of another machine: c, 2 cores"
    path.unlink()
    assert "there is no noise floor" in (foreign_floor(named, ABOUT) or "")


def test_noise_floor_needs_two_pairs(tmp_path: Path) -> None:
    """One pair has no spread."""
    with pytest.raises(HarnessError, match="two valid pairs"):
        calibration(tmp_path, [0.01])


def test_calibrate_runs_stock_twice(tmp_path: Path) -> None:
    """The command starts stock in both arms and writes a floor that a gate then uses."""
    config, out = write_spec(tmp_path, pairs=2), io.StringIO()
    floor = tmp_path / "floor.json"
    assert calibrate(RunCommand(config, tmp_path / "results"), floor, Progress(out)) == 0
    assert out.getvalue().count("server of arm stock") == 2
    found = json.loads(floor.read_text())
    assert found["metrics"]["output_tok_s"]["pairs"] == 2
    assert found["metrics"]["itl_p50"]["half_width"] >= 0
    huge = make_spec(
        pairs=2,
        gate={"noise_floor": str(floor), "margins": {"output_tok_s": 0.99, "itl_p50": 0.99}},
    )
    check_margins(huge)


def test_paced_runs_are_what_they_say() -> None:
    """The helper's pace is the ITL that the summary finds."""
    campaign = Campaign(make_spec())
    campaign.runs = [paced_run("stock", 0, 10), paced_run("spin", 0, 5)]
    summary = summarise(campaign)
    assert summary["invalid_reasons"] == []
    assert summary["arms"]["spin"]["itl_ms"]["p50"] == pytest.approx(5, abs=1 / MS)
