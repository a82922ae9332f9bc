"""The command line: text, JSON, picture, and what it says to wrong requests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sglang_spin.lab.__main__ import main
from tests.lab.requests import cost

NUMBER = (int, float)
PART = {
    "name": str, "read_bytes": NUMBER, "written_bytes": NUMBER, "flops": NUMBER, "launches": int,
    "ms": float, "basis": str,
}  # fmt: skip
OUTCOME = {"overhead_ms": float, "itl_ms": float, "tokens_per_second": float, "speedup": float}
SHARES = {"paper": NUMBER, "swapped": NUMBER, "ours": NUMBER}
SCHEMA = {
    "schema": int,
    "label": str,
    "request": {
        "gpu": str, "model": str, "context": int, "batch": int, "tp": int, "index_format": str,
        "observe": str,
    },
    "all_keep": {"itl_ms": float, "tokens_per_second": float, "parts": [PART]},
    "spin": {"at_sparsity": float, "parts": [PART], "state_bytes": {"paper": int, "ours": int}},
    "points": [
        {
            "sparsity": float,
            "kept_blocks": int,
            "skipped_entries_share": float,
            "our_bytes_share_of_dense_scoring": float,
            "published": (dict, type(None)),
            "outcomes": {"paper": OUTCOME, "swapped": OUTCOME, "ours": OUTCOME},
        }
    ],
    "break_even_sparsity": SHARES,
    "scenarios": {"paper": str, "swapped": str, "ours": str},
    "memory_bytes_per_rank": float,
    "assumptions": [{"tag": str, "text": str}],
}  # fmt: skip


def _matches(value: Any, schema: Any, where: str = "report") -> None:
    if isinstance(schema, Mapping):
        assert set(value) == set(schema), where
        for key, inner in schema.items():
            _matches(value[key], inner, f"{where}.{key}")
    elif isinstance(schema, list):
        assert value, where
        for inner in value:
            _matches(inner, schema[0], f"{where}[]")
    else:
        assert isinstance(value, schema), (where, value)


def test_text_is_labelled_as_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """The first line says that this is a model and not a measurement."""
    assert main(cost()) == 0
    assert capsys.readouterr().out.startswith("MODEL, NOT A MEASUREMENT\n")


def test_text_tags_every_kind_of_assumption(capsys: pytest.CaptureFixture[str]) -> None:
    """Published, derived, calibrated and assumed figures are listed apart, without warnings."""
    main(cost())
    out = capsys.readouterr().out
    assert all(f"[{tag}]" in out for tag in ("published", "derived", "calibrated", "assumed"))
    assert "[warning]" not in out


def test_leaving_the_calibrated_point_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """Another GPU, too long a context and too little memory are each pointed out."""
    main(cost(gpu="h200", model="glm-5"))
    out = " ".join(capsys.readouterr().out.split())
    assert "gpu h200 instead of b300; model glm-5 instead of deepseek-v4-flash" in out
    assert "glm-5 is trained for 202,752 tokens at most" in out
    assert "does not fit" in out


def test_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has exactly the documented keys and types."""
    assert main([*cost(), "--json"]) == 0
    _matches(json.loads(capsys.readouterr().out), SCHEMA)


def test_json_says_what_the_text_says(capsys: pytest.CaptureFixture[str]) -> None:
    """At the published point JSON holds the published figures beside the model's."""
    main([*cost(), "--json", "--sparsity", "0.4"])
    report = json.loads(capsys.readouterr().out)
    (point,) = report["points"]
    assert point["published"] == {"itl_ms": pytest.approx(16.204), "tokens_per_second": 5218.65}
    assert point["outcomes"]["paper"]["itl_ms"] == pytest.approx(16.204, rel=0.005)
    assert point["kept_blocks"] == 1189


def test_json_is_in_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    """The parts of the all-keep step add up to its ITL, which is the published 17.837 ms."""
    main([*cost(), "--json"])
    step = json.loads(capsys.readouterr().out)["all_keep"]
    assert sum(part["ms"] for part in step["parts"]) == pytest.approx(17.837)
    assert step["itl_ms"] == pytest.approx(17.837)


def test_sparsity_list_sets_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Each listed sparsity is one row, in the order given."""
    main([*cost(), "--json", "--sparsity", "0.3,0.1"])
    report = json.loads(capsys.readouterr().out)
    assert [point["sparsity"] for point in report["points"]] == [0.3, 0.1]


def test_names_ignore_case(capsys: pytest.CaptureFixture[str]) -> None:
    """`B300` and `DeepSeek-V4-Flash` are understood."""
    assert main(cost(gpu="B300", model="DeepSeek-V4-Flash")) == 0
    assert "8 x b300" in capsys.readouterr().out


WRONG = [
    (cost(gpu="h100"), ["--gpu", "'h100'", "h200", "b200", "b300"]),
    (cost(model="glm"), ["--model", "'glm'", "deepseek-v4-flash", "deepseek-v3.2", "glm-5"]),
    (cost(batch="0"), ["--batch", "'0'", "whole number from 1"]),
    (cost(context="-5"), ["--context", "'-5'", "whole number from 1"]),
    (cost(context="many"), ["--context", "'many'", "whole number from 1"]),
    ([*cost(), "--sparsity", "0.4,1"], ["--sparsity", "'0.4,1'", "shares below 1"]),
    ([*cost(), "--sparsity", "nan"], ["--sparsity", "'nan'"]),
    ([*cost(), "--sparsity", ""], ["--sparsity", "''"]),
    ([*cost(gpu="h200"), "--index-format", "fp4"], ["fp4", "h200 lacks it", "b200, b300"]),
    ([*cost(), "--plot", "itl.bmp"], ["--plot", "'itl.bmp'", ".png"]),
    ([*cost(), "--plot", "/no/such/folder/itl.png"], ["--plot", "No such file or directory"]),
    (["cost"], ["--gpu", "--model", "--context", "--batch"]),
    (["price"], ["'price'", "cost"]),
    ([], ["command"]),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=lambda value: " ".join(value)[-40:])
def test_wrong_request_is_one_line_and_exit_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong request prints one line that names the option and what is valid, and exits with 2."""
    try:
        code: int | str | None = main(arguments)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert all(word in err for word in words), err


def test_plot_is_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--plot writes a PNG and the report is printed all the same."""
    path = tmp_path / "itl.png"
    assert main([*cost(), "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "Break-even" in capsys.readouterr().out


def test_plot_shows_all_curves_and_the_published_points(tmp_path: Path) -> None:
    """The picture names the model as such, three scenarios, all-keep and the published points."""
    path = tmp_path / "itl.svg"
    main([*cost(), "--plot", str(path)])
    drawn = path.read_text()
    texts = ("MODEL, NOT A MEASUREMENT", "all-keep", "paper:", "swapped:", "ours:", "published")
    assert all(text in drawn for text in texts)


def test_the_lab_is_light() -> None:
    """The command runs without torch, matplotlib or any part of the plugin except core."""
    code = (
        "import sys; from sglang_spin.lab.__main__ import main; "
        f"main({cost()!r}); loaded = set(sys.modules); "
        "assert not loaded & {'torch', 'matplotlib', 'numpy', 'sglang'}, loaded; "
        "own = {m.split('.')[1] for m in loaded if m.startswith('sglang_spin.')}; "
        "assert own == {'core', 'lab'}, own"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
