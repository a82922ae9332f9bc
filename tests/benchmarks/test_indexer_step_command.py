"""`python -m benchmarks.indexer_step`: its files, their documentation, its refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.indexer_step import __main__ as command
from benchmarks.indexer_step import analysis, report, timing
from benchmarks.indexer_step.options import tokens

ROOT = Path(__file__).parents[2]


def test_a_run_writes_its_documented_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON, CSV and picture come out, the JSON with the fields that docs/benchmarks.md names."""
    monkeypatch.setitem(timing.COPY_BYTES, "cpu", 1 << 16)
    monkeypatch.setitem(timing.FLUSH_BYTES, "cpu", 1 << 16)
    out = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "png")}
    asked = "--device cpu --batches 1,2 --contexts 4096,100M --sparsities 0,0.4 --layers 1"
    files = f"--json {out['json']} --csv {out['csv']} --plot {out['png']}"
    assert (
        command.main(f"{asked} --heads 16 --repeats 2 --scorers torch --topk torch {files}".split())
        == 0
    )
    document = json.loads(out["json"].read_text())
    fields = {f.name for f in dataclasses.fields(report.Results)} | {"schema", "targets"}
    assert set(document) == fields
    assert [(r["batch"], r["sparsity"]) for r in document["records"]] == [
        (1, 0.0), (1, 0.4), (2, 0.0), (2, 0.4),
    ]  # fmt: skip
    assert [len(r["spin_samples_ms"]) for r in document["records"]] == [2] * 4
    assert set(document["machine"]["versions"]) >= {"torch"}
    assert len(document["skipped"]) == 2
    lines = out["csv"].read_text().splitlines()
    assert len(lines) == 5
    assert "fold_select_ms" in lines[0]
    assert out["png"].read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "skipped 1 rows x 100,000,000 tokens" in printed
    assert "scaled, not measured: 21 layers" in printed


@pytest.mark.parametrize(
    "kind", [analysis.Record, analysis.Summary, analysis.Target, report.Results]
)
def test_every_field_is_documented(kind: type) -> None:
    """docs/benchmarks.md names every field of the JSON."""
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    for field in dataclasses.fields(kind):
        assert f"`{field.name}`" in text, f"{kind.__name__}.{field.name}"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--device tpu", "--device"),
        ("--device cpu --batches 0", "--batches"),
        ("--device cpu --contexts 5x", "--contexts"),
        ("--device cpu --sparsities 1", "--sparsities"),
        ("--device cpu --heads 7", "--heads"),
        ("--device cpu --scorers triton", "--scorers triton"),
        ("--device cpu --topk sglang", "--topk sglang"),
        ("--device cpu --repeats 99", "--repeats 99"),
        ("--device cpu --memory-gb 0.001 --batches 1 --contexts 32K", "nothing fits"),
        ("--device cpu --json /nowhere/out.json", "/nowhere/out.json"),
        ("--device cpu --plot out.txt", "--plot"),
    ],
)
def test_bad_requests_end_in_one_line(
    arguments: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request that cannot be met ends with code 2 and one line that names the option."""
    try:
        status: object = command.main(arguments.split())
    except SystemExit as exit_:
        status = exit_.code
    error = capsys.readouterr().err
    assert status == 2
    assert error.count("\n") == 1
    assert named in error


def test_tokens_are_decimal() -> None:
    """507K means 507,000, the published context, and 1M a million."""
    assert [tokens(text) for text in ("507K", "1M", "4096")] == [507_000, 1_000_000, 4096]
