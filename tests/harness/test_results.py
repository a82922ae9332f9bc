"""Result folder, parquet, report and progress."""

import io
from array import array
from pathlib import Path

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.campaign import Campaign
from harness.environment import without_secrets
from harness.errors import HarnessError
from harness.parity import equal_prefix
from harness.plots import all_plots
from harness.progress import Progress
from harness.report import CAPTIONS, render_report
from harness.results import ResultFolder
from harness.runrecord import ArmRun
from harness.summary import summarise
from harness.table import requests_parquet
from tests.harness.helpers import make_spec
from tests.harness.test_validity import COUNTERS, sound_record

HOSTILE = "</td><script>alert(1)</script>"


def campaign(**changes: object) -> Campaign:
    """One sound pair of two arms; the treatment's outputs differ from position 1 on."""
    made = Campaign(make_spec(**changes))
    for position, arm in enumerate(["stock", "spin"]):
        records = [sound_record(0), sound_record(1)]
        records[0].output_ids.extend([1, 2, 3, 4])
        records[1].output_ids.extend([5, 6 + position, 7, 8])
        spin = COUNTERS if arm == "spin" else None
        made.runs.append(ArmRun(arm, 0, position, expected_cached=256, records=records, spin=spin))
    return made


def test_folder_is_never_overwritten(tmp_path: Path) -> None:
    """Results of the same second get folders of their own, and latest is the newest."""
    folders = [ResultFolder.create(tmp_path, "x") for _ in range(3)]
    assert len({folder.path for folder in folders}) == 3
    for folder in folders:
        folder.write_text("summary.json", folder.path.name)
        folder.point_latest()
    latest = tmp_path / "x" / "latest"
    assert latest.is_symlink()
    assert (latest / "summary.json").read_text() == folders[-1].path.name
    assert len(list((tmp_path / "x").iterdir())) == 4


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in the way is one clear error."""
    (tmp_path / "x").write_text("")
    with pytest.raises(HarnessError, match="cannot be made"):
        ResultFolder.create(tmp_path, "x")


def test_nan_is_no_result(tmp_path: Path) -> None:
    """NaN is refused when written, so that no reader has to parse it."""
    with pytest.raises(ValueError):
        ResultFolder.create(tmp_path, "x").write_json("a.json", float("nan"))


def test_t14_every_row_says_its_cache_state(tmp_path: Path) -> None:
    """The parquet file holds raw times and, per row, whether flush and priming were done."""
    made = campaign()
    made.runs[0].flushed = made.runs[0].primed = True
    made.runs[0].records[1].cached_tokens = None
    path = tmp_path / "requests.parquet"
    path.write_bytes(requests_parquet(made.runs))
    rows = pyarrow.parquet.read_table(path).to_pylist()
    assert [(row["arm"], row["request"], row["primed"]) for row in rows] == [
        ("stock", 0, True), ("stock", 1, True), ("spin", 0, False), ("spin", 1, False),
    ]  # fmt: skip
    assert rows[1]["cached_tokens"] is None
    assert rows[0]["chunk_t_ns"] == list(made.runs[0].records[0].chunk_t_ns)
    assert sum(rows[0]["chunk_tokens"]) == 12


def test_summary_has_the_promised_keys() -> None:
    """The keys that tools read are there, with the arms' names and the ratio of the treatment."""
    summary = summarise(campaign())
    assert summary["valid"] is True
    assert summary["invalid_reasons"] == []
    for arm in ("stock", "spin"):
        figures = summary["arms"][arm]
        assert figures["output_tok_s"] == pytest.approx(200)
        assert figures["itl_ms"]["p50"] == figures["itl_ms"]["p99"] == pytest.approx(10)
        assert figures["ttft_ms"]["p50"] == pytest.approx(10)
        assert figures["cached_tokens_ok"] is figures["requests_ok"] is True
    assert summary["arms"]["stock"]["spin"] is None
    spin = summary["arms"]["spin"]["spin"]
    assert spin["realised_sparsity"] == pytest.approx(0.4)
    assert spin["kept_share"] == [0.6, 0.6]
    assert {"policy", "target_sparsity", "steps", "rows_seeded", "rows_cold"} <= set(spin)
    assert summary["ratio"]["output_tok_s"]["estimate"] == pytest.approx(1)
    assert summary["ratio"]["itl_p50"]["ci95"] is None


def test_parity_of_greedy_outputs() -> None:
    """Equal outputs and equal beginnings are counted between the arms of a pair."""
    found = summarise(campaign())["parity"]["spin"]
    assert found == {
        "compared": 2,
        "equal_share": 0.5,
        "equal_prefix_share": (1 + 1 / 4) / 2,
        "equal_token_share": (1 + 3 / 4) / 2,
        "first_difference_p50": 1,
    }


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_equal_prefix(one: list[int], two: list[int]) -> None:
    """Everything before the returned position agrees, and what stands there does not."""
    n = equal_prefix(one, two)
    assert one[:n] == two[:n]
    assert n in (len(one), len(two)) or one[n] != two[n]


def test_t08_different_bases_are_not_compared() -> None:
    """Arms whose tokens were counted differently are refused."""
    made = campaign()
    for record in made.runs[1].records:
        record.itl_basis = "chunk"
    summary = summarise(made)
    assert summary["valid"] is False
    assert "itl_basis: the arms count tokens differently" in summary["invalid_reasons"][0]


def test_t31_missing_runs_are_not_a_pass() -> None:
    """A campaign without all its runs is invalid, however good those it has."""
    summary = summarise(campaign(pairs=2))
    assert summary["valid"] is False
    assert summary["invalid_reasons"] == ["only 2 of 4 runs were done"]


def test_t31_invalid_runs_do_not_enter_the_ratio() -> None:
    """A pair with a problem in either arm gives no ratio."""
    made = campaign()
    made.runs[1].problems.append("something")
    summary = summarise(made)
    assert summary["ratio"]["output_tok_s"]["estimate"] is None
    assert summary["invalid_reasons"] == ["pair 1 spin: something"]


def test_t35_p99_is_shown_but_not_compared() -> None:
    """The ratio has throughput and median ITL only."""
    summary = summarise(campaign())
    assert set(summary["ratio"]) == {"output_tok_s", "itl_p50"}
    assert summary["arms"]["spin"]["itl_ms"]["p99"] is not None


def test_campaign_without_gaps_still_has_a_summary() -> None:
    """Without a gap in the window there is no ITL and no ratio of it, and nothing fails."""
    made = campaign()
    for run in made.runs:
        for record in run.records:
            record.chunk_t_ns = array("q", [record.index, 10 + record.index])
            record.chunk_tokens = array("q", [1, 11])
    summary = summarise(made)
    assert summary["arms"]["spin"]["itl_ms"]["p50"] is None
    assert summary["ratio"]["itl_p50"]["estimate"] is None
    assert "n/a" in render_report(summary, "", {"servers": {}}, all_plots(made, summary))


def test_report_is_one_escaped_file() -> None:
    """Server text is escaped, images are inside, and nothing is asked of the network."""
    made = campaign()
    made.runs[1].problems.append(HOSTILE)
    summary = summarise(made)
    plots = all_plots(made, summary)
    # without a sound pair there is no ratio to show
    # nor was any server watched
    assert set(plots) == set(CAPTIONS) - {"ratios.png", "spin_time.png", "server.png"}
    about = {"python": HOSTILE, "servers": {"spin": {"version": HOSTILE}}}
    page = render_report(summary, f"name: {HOSTILE}", about, plots)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 5
    assert page.count("data:image/png;base64,") == len(plots)
    assert "http:" not in page
    assert "https:" not in page


def test_report_of_a_campaign_without_a_run() -> None:
    """A campaign that never started still gets a report that says why."""
    made = Campaign(make_spec(), stopped="preflight: no GPU")
    summary = summarise(made)
    plots = all_plots(made, summary)
    page = render_report(summary, "", {"servers": {}}, plots)
    assert plots == {}
    assert "preflight: no GPU" in page


def test_secrets_of_servers_are_left_out() -> None:
    """Values of secret-looking keys are replaced at any depth, token counts stay."""
    info = {"api_key": "s1", "max_total_num_tokens": 5, "a": [{"admin_token": "s2", "b": None}]}
    assert without_secrets(info) == {
        "api_key": "(left out)",
        "max_total_num_tokens": 5,
        "a": [{"admin_token": "(left out)", "b": None}],
    }


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_and_elsewhere() -> None:
    """A terminal gets one live line; a file gets plain lines without control codes."""
    live, plain = Terminal(), io.StringIO()
    for out in (live, plain):
        progress = Progress(out)
        progress.phase("load", "pair 1 spin")
        progress.load(50, 100, 12.5, 4)
        progress.load(60, 100, 12.5, 4)
        progress.say("done")
    assert live.getvalue().count("\r\x1b[2K") == 2
    assert "60/100 tokens" in live.getvalue()
    assert "\x1b" not in plain.getvalue()
    assert "\r" not in plain.getvalue()
    assert plain.getvalue().endswith("done\n")
