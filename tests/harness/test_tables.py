"""What tells a reader apart from the page: CSV, Markdown, checklist, comparability, corpus."""

import csv
import io
import math
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from harness.campaign import Campaign
from harness.checklist import checklist
from harness.comparable import comparison_notes, comparison_problems
from harness.csvtables import requests_csv, runs_csv
from harness.errors import HarnessError
from harness.idsource import corpus_ids
from harness.markdown import markdown_summary, not_shown
from harness.plots import indexer_layers, kept_share_per_layer
from harness.progress import Progress
from harness.summary import summarise
from harness.telemetry_table import telemetry_parquet
from harness.tokenize import tokenize
from tests.harness.helpers import make_spec
from tests.harness.test_judge import paced_run
from tests.harness.test_work import trace_spec


def campaign(pairs: int = 2, spin_ms: float = 8.0, **changes: Any) -> Campaign:
    """Sound pairs: stock at 10 ms a token, spin at `spin_ms`."""
    made = Campaign(make_spec(pairs=pairs, **changes))
    for pair in range(pairs):
        made.runs += [paced_run("stock", pair, 10.0), paced_run("spin", pair, spin_ms)]
    return made


def test_telemetry_table() -> None:
    """A row for each reading of each series, of servers and GPUs; what a page lacked is null."""
    made = campaign(pairs=1)
    run = made.runs[1]
    run.telemetry.add(5, {("a", (("layer", "3"),)): 1.5})
    run.telemetry.add(6, {})
    run.gpus.add(7, {("gpu:power_w", (("gpu", "0"),)): 700.0})
    table = pyarrow.parquet.read_table(io.BytesIO(telemetry_parquet(made.runs))).to_pylist()
    assert [(row["t_ns"], row["series"], row["value"]) for row in table] == [
        (5, "a", 1.5), (6, "a", None), (7, "gpu:power_w", 700.0),
    ]  # fmt: skip
    assert table[0] | {"arm": "spin", "pair": 0, "labels": '{"layer":"3"}'} == table[0]
    assert pyarrow.parquet.read_table(io.BytesIO(telemetry_parquet([]))).num_rows == 0


def test_interval_that_contains_one_is_told() -> None:
    """Equal arms are named as not shown to differ, an arm that is faster is not."""
    equal = campaign(spin_ms=10.0)
    for run, ms in zip(equal.runs, (0, 1, 1, 0), strict=True):
        for record in run.records:
            record.chunk_t_ns = array("q", [t * (100 + ms) // 100 for t in record.chunk_t_ns])
    summary = summarise(equal)
    assert not_shown(summary) == ["spin output tok/s", "spin median ITL"]
    assert "no difference is shown: spin output tok/s, spin median ITL" in markdown_summary(summary)
    faster = summarise(campaign())
    assert not_shown(faster) == []
    assert "no difference" not in markdown_summary(faster)


def test_layers_of_the_kept_share() -> None:
    """Kept shares stand at the layers that report a miss; without these they are counted from 0."""
    kept = [0.6, 0.6]
    assert indexer_layers({"kept_share": kept, "miss_share": [None, 0.1, None, 0.3]}) == [1, 3]
    assert indexer_layers({"kept_share": kept, "miss_share": [None, 0.1]}) == [0, 1]
    assert indexer_layers({"kept_share": kept, "miss_share": None}) == [0, 1]


def test_arms_that_speculate_or_record_differently_are_told() -> None:
    """More tokens a chunk in one arm, or steps outside the CUDA graph, is a note for the reader."""
    made = campaign(pairs=1)
    assert comparison_notes(made.runs, made.spec) == []
    for run, graph in zip(made.runs, (1.0, 0.0), strict=True):
        run.telemetry.add(1, {("sglang:is_cuda_graph", ()): graph})
    for record in made.runs[1].records:
        record.chunk_tokens = array("q", [1] + [2] * (len(record.chunk_tokens) - 1))
    chunks, graphs = comparison_notes(made.runs, made.spec)
    assert chunks.startswith("tokens per chunk: spin 2.000, stock 1.000")
    assert graphs.startswith("decode steps in a CUDA graph (sglang:is_cuda_graph): spin 0.000")


def rows(text: str) -> list[dict[str, str]]:
    """A CSV as a spreadsheet reads it."""
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_tables() -> None:
    """One row per run and per request, with units in the names and the figures of the summary."""
    made = campaign()
    made.runs[3].problems.append('a "quoted", thing')
    found = rows(runs_csv(summarise(made)))
    assert [(row["pair"], row["arm"]) for row in found] == [
        ("1", "stock"), ("1", "spin"), ("2", "stock"), ("2", "spin"),
    ]  # fmt: skip
    assert float(found[1]["itl_ms_p50"]) == pytest.approx(8)
    assert float(found[1]["realised_sparsity"]) == pytest.approx(0.4)
    assert found[0]["realised_sparsity"] == ""
    assert found[3]["problems"] == 'a "quoted", thing'
    requests = rows(requests_csv(made.runs))
    assert len(requests) == 8
    assert float(requests[0]["ttft_ms"]) == 10
    assert requests_csv([]) == ""


def test_markdown_says_the_verdict_first() -> None:
    """Headline, the table with limits and outcomes, and how it was measured."""
    text = markdown_summary(summarise(campaign(gate={})))
    assert text.startswith("### test: PASS\n")
    assert "| spin | output tok/s | 200.0 | 250.0 | 1.250 |" in text
    assert "at least 0.980 of the baseline's | PASS |" in text
    assert "window `full_batch`, ITL convention `token`" in text


def test_markdown_of_an_invalid_result_is_escaped() -> None:
    """Server text can be no markup, no link, no table cell."""
    made = campaign(gate={})
    made.runs[0].problems.append("failed: <img src=x> | [a](b)\n# x")
    text = markdown_summary(summarise(made))
    assert text.startswith("### test: NOT VALID\n")
    assert "<img" not in text.replace("\\<img", "")
    assert r"\<img src=x\> \| \[a\](b) # x" in text


def test_checklist_puts_every_reason_at_its_check() -> None:
    """Problems stand at the check they break, whatever run they are of; the rest is at the end."""
    made = campaign()
    made.runs[0].problems += ["spin: x", "verify: cached_tokens: y"]
    made.runs[1].problems += ["the server ended: z"]
    checks = checklist(summarise(made))
    found = {check.text.split()[0]: check.found for check in checks if check.found}
    assert found == {
        "SPIN": ("pair 1 stock: spin: x",),
        "Every": ("pair 1 stock: verify: cached_tokens: y",),
        "Nothing": ("pair 1 spin: the server ended: z",),
    }


def with_answers(arm_ids: dict[str, list[int]], **changes: Any) -> Campaign:
    """A campaign whose answers have these ids."""
    made = campaign(pairs=1, **changes)
    for run in made.runs:
        for record in run.records:
            record.output_ids.extend(arm_ids[run.arm])
    return made


def test_answers_that_repeat_themselves_differently() -> None:
    """A gap of the share of distinct 4-grams is noted, or refused where the spec has a limit."""
    ids = {"stock": list(range(12)), "spin": [5] * 12}
    made = with_answers(ids)
    (note,) = comparison_notes(made.runs, made.spec)
    assert note.startswith("share of distinct 4-grams in the answers: spin 0.111, stock 1.000")
    assert comparison_problems(made.runs, made.spec) == []
    strict = with_answers(ids, limits={"repetition_gap": 0.5})
    assert len(comparison_problems(strict.runs, strict.spec)) == 1
    assert strict.invalid_reasons() != []
    same = with_answers({"stock": ids["spin"], "spin": ids["spin"]})
    assert comparison_notes(same.runs, same.spec) == []


def test_t13_trace_that_found_more_in_one_cache(tmp_path: Path) -> None:
    """Replayed requests must find the same in the caches of both arms, within cached_gap."""
    spec = trace_spec(tmp_path)
    runs = [paced_run("stock", 0, 10), paced_run("spin", 0, 10)]
    assert comparison_problems(runs, spec) == []
    runs[1].records[0].cached_tokens = 100
    (problem,) = comparison_problems(runs, spec)
    assert problem.startswith("cached tokens as a share of the prompts: spin")


def test_miss_of_each_layer_is_the_last_reading() -> None:
    """Gauges of both ranks are averaged, the last reading counts, layers without one are None."""
    made = campaign()
    for rank, last in (("0", 0.02), ("1", 0.04)):
        labels = (("layer", "2"), ("tp_rank", rank))
        series = {("sglang_spin:miss_mean", labels): array("d", [0.5, last, math.nan])}
        made.runs[1].telemetry.series |= series
    made.runs[1].telemetry.series["sglang_spin:miss_mean", ()] = array("d", [9.0])
    summary = summarise(made)
    assert summary["runs"][1]["spin"]["miss_share"] == [None, None, pytest.approx(0.03)]
    assert summary["arms"]["spin"]["spin"]["miss_share"] == [None, None, pytest.approx(0.03)]
    assert summary["runs"][3]["spin"]["miss_share"] is None
    assert kept_share_per_layer(summary) != kept_share_per_layer(summarise(campaign()))


def test_tokenize_writes_a_corpus(tmp_path: Path) -> None:
    """The ids of all texts in order, readable as a corpus."""
    tokenizer = Tokenizer(WordLevel({"a": 3, "b": 5, "?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = [tmp_path / "one", tmp_path / "two"]
    texts[0].write_text("a b a")
    texts[1].write_text("b c")
    out = tmp_path / "corpus.npy"
    said = io.StringIO()
    assert tokenize(texts, tmp_path / "tokenizer.json", out, Progress(said)) == 0
    assert corpus_ids(str(out)).tolist() == [3, 5, 3, 5, 0]
    assert np.load(out).dtype == np.uint32
    assert "5 ids of 2 text(s), the largest is 5" in said.getvalue()
    with pytest.raises(HarnessError, match=r"there is no tokenizer\.json"):
        tokenize(texts, tmp_path / "none", out, Progress(said))
