"""Runs on disk, interrupted campaigns, and results rebuilt from their records."""

import io
import json
import math
import os
from array import array
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harness import campaign as campaign_module
from harness.codec import CodecError, decode, encode
from harness.command import RunCommand, execute, rebuild, resume
from harness.errors import HarnessError
from harness.looplag import LoopLag
from harness.progress import Progress
from harness.results import ResultFolder
from harness.runcontext import RunContext
from harness.runrecord import ArmRun
from harness.runstore import RunStore, write_whole
from tests.harness.helpers import write_spec
from tests.harness.test_validity import sound_run


def full_run() -> ArmRun:
    """A run in which every kind of field has a value."""
    run = sound_run("spin")
    run.lag = LoopLag(array("q", [2**60]), array("q", [5]))
    run.warm_tok_s = [1.5, 2.25]
    run.problems = ["a <problem>"]
    run.records[0].output_ids.extend([1, 2**31 - 1])
    run.records[0].text += ["a", "ä"]
    run.records[1].cached_tokens = None
    return run


def test_run_survives_the_disk(tmp_path: Path) -> None:
    """What is loaded equals what was saved, to the last field."""
    store, run = RunStore(tmp_path), full_run()
    store.save(run)
    assert store.load() == [run]


def test_runs_load_in_the_order_of_the_campaign(tmp_path: Path) -> None:
    """Pairs in order, places within a pair in order, also past pair nine."""
    store = RunStore(tmp_path)
    for pair, position, arm in [(9, 1, "spin"), (1, 0, "spin"), (9, 0, "stock"), (1, 1, "stock")]:
        store.save(replace(full_run(), pair=pair, position=position, arm=arm))
    assert [(run.pair, run.position) for run in store.load()] == [(1, 0), (1, 1), (9, 0), (9, 1)]
    store.drop([run for run in store.load() if run.pair == 9])
    assert [run.pair for run in store.load()] == [1, 1]


def test_half_written_runs_are_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash while writing leaves the folder as it was before."""
    store = RunStore(tmp_path)
    store.save(full_run())

    def crash(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(HarnessError, match=r"cannot be written \(disk full\)"):
        store.save(replace(full_run(), problems=[]))
    assert store.load() == [full_run()]


def test_damaged_run_is_named(tmp_path: Path) -> None:
    """A file that was cut short is one line that says what to do."""
    store = RunStore(tmp_path)
    store.save(full_run())
    (path,) = store.folder.iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(HarnessError, match=r"delete it and resume"):
        store.load()


@dataclass
class Plain:
    """For the codec."""

    pair: tuple[int, str]
    names: dict[str, float]
    maybe: int | None = None
    series: "dict[tuple[str, tuple[int, ...]], array[float]]" = field(default_factory=dict)


@pytest.mark.parametrize(
    "value",
    [{"pair": [1, "a"]}, {"pair": [1, "a"], "names": {}, "more": 1}, [], {"pair": 3, "names": {}}],
)
def test_codec_refuses_other_shapes(value: Any) -> None:
    """Missing, unknown and ill-typed fields are errors, not defaults."""
    with pytest.raises(CodecError):
        decode(Plain, value)


def test_codec_keeps_types() -> None:
    """Tuples stay tuples, also as keys; floats stay floats, None stays None."""
    made = Plain((1, "a"), {"x": 2.0}, series={("s", (1, 2)): array("d", [0.5, 1.0])})
    assert decode(Plain, json.loads(json.dumps(encode(made)))) == made


def test_codec_keeps_gaps_in_series() -> None:
    """NaN, a missing sample, is null in JSON and NaN again after it."""
    made = Plain((1, "a"), {}, series={("s", ()): array("d", [0.5, math.nan])})
    text = json.dumps(encode(made), allow_nan=False)
    (found,) = decode(Plain, json.loads(text)).series.values()
    assert found[0] == 0.5
    assert math.isnan(found[1])


def test_whole_files_only(tmp_path: Path) -> None:
    """Writing replaces in one step and leaves no draft."""
    path = tmp_path / "a"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_folder_is_locked(tmp_path: Path) -> None:
    """Two harnesses never write to one result."""
    folder = ResultFolder.create(tmp_path, "x")
    with folder.locked(), pytest.raises(HarnessError, match="another harness is at work here"):
        ResultFolder(folder.path).locked().__enter__()
    with folder.locked():
        pass


def test_no_result_folder(tmp_path: Path) -> None:
    """Resume and report need a result folder, and say so."""
    for command in (resume, rebuild):
        with pytest.raises(HarnessError, match="is no result folder"):
            command(tmp_path, Progress(io.StringIO()))


def crash_in_run(number: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the harness itself fail in the number-th run; returns the labels of all runs begun."""
    genuine, begun = campaign_module.run_arm, list[str]()

    async def counted(context: RunContext, run: ArmRun) -> None:
        begun.append(run.label)
        if len(begun) == number:
            raise RuntimeError("a bug")
        await genuine(context, run)

    monkeypatch.setattr(campaign_module, "run_arm", counted)
    return begun


def test_crash_between_runs_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash in pair 2, resume keeps pair 1 byte for byte, does pair 2 whole, and ends."""
    begun = crash_in_run(4, monkeypatch)
    spec = write_spec(tmp_path, pairs=2)
    with pytest.raises(RuntimeError, match="a bug"):
        execute(RunCommand(spec, tmp_path / "results"), Progress(io.StringIO()))
    folder = tmp_path / "results" / "test" / "latest"
    assert not (folder / "summary.json").exists()
    kept = {path.name: path.read_bytes() for path in (folder / "runs").glob("pair-001-*")}
    assert len(kept) == 2
    out = io.StringIO()
    assert resume(folder, Progress(out)) == 0
    assert begun == ["pair 1 stock", "pair 1 spin", *2 * ["pair 2 spin", "pair 2 stock"]]
    assert {name: (folder / "runs" / name).read_bytes() for name in kept} == kept
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["valid"] is True
    assert len(summary["ratio"]["itl_p50"]["per_pair"]) == 2
    assert any("pair 2 stock: interrupted" in note for note in summary["notes"])
    assert resume(folder, Progress(out)) == 0
    assert "nothing to resume" in out.getvalue()
    assert len(begun) == 6


def test_report_is_rebuilt_from_the_records(tmp_path: Path) -> None:
    """`harness report` gives the same summary and all files anew, whatever was deleted."""
    execute(RunCommand(write_spec(tmp_path), tmp_path / "results"), Progress(io.StringIO()))
    folder = tmp_path / "results" / "test" / "latest"
    before = (folder / "summary.json").read_text()
    names = {path.name for path in folder.iterdir()}
    for path in folder.iterdir():
        if path.is_file() and path.name not in ("spec.yaml", "env.json"):
            path.unlink()
    assert rebuild(folder, Progress(io.StringIO())) == 0
    assert (folder / "summary.json").read_text() == before
    assert {path.name for path in folder.iterdir()} == names
