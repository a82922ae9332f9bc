"""Audits and metrics of a real server: what they say is true, and they change no token."""

from __future__ import annotations

import os
import re
import time
import urllib.request
from pathlib import Path

import pytest

from sglang_spin.engine.metrics import PREFIX, series_names
from tests.e2e import _audit_probe
from tests.e2e.prompts import prompt
from tests.e2e.server import Server, serve

pytestmark = pytest.mark.slow

PROMPTS = [prompt(length, seed=length) for length in (2000, 1500, 700)]
LAYERS = 4
_SAMPLE = re.compile(rf"^{PREFIX}(\w+)\{{(.*)\}} (\S+)$", re.MULTILINE)


def _series(server: Server) -> dict[tuple[str, str | None], float]:
    """SPIN's samples by name and layer."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    found = {}
    for name, labels, value in _SAMPLE.findall(text):
        layer = re.search(r'layer="(\d+)"', labels)
        assert 'tp_rank="0"' in labels
        assert 'model_name="' in labels
        found[name, layer and layer[1]] = float(value)
    return found


def _settled(server: Server) -> dict[tuple[str, str | None], float]:
    """The samples once the scheduler is idle, when its totals are those of /server_info."""
    steps = server.spin()["steps"]
    deadline = time.monotonic() + 10
    while (found := _series(server)).get(("steps_total", None)) != steps:
        assert time.monotonic() < deadline, "an idle server did not publish its last steps"
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Tokens of stock SGLang, on whose /metrics there is nothing of SPIN."""
    log = tmp_path_factory.mktemp("stock") / "server.log"
    with serve(log, "--no-spin", "--enable-metrics") as server:
        replies = server.generate(PROMPTS, 40)
        assert _series(server) == {}
    return [reply["output_ids"] for reply in replies]


def test_audits_measure_the_true_miss_and_change_no_token(
    stock: list[list[int]], tmp_path: Path
) -> None:
    """With every step an audit, tokens are stock's, and each layer's miss is the one computed from
    the slots that the engine selected."""
    _audit_probe.write_plugin(tmp_path / "plugin")
    record = tmp_path / "audits.txt"
    env = {
        "PYTHONPATH": f"{tmp_path / 'plugin'}:{os.environ.get('PYTHONPATH', '')}",
        _audit_probe.FILE: str(record),
    }
    options = ("--spin-sparsity=0.6", "--spin-audit-every=1", "--enable-metrics")
    with serve(tmp_path / "server.log", *options, env=env) as server:
        tokens = [reply["output_ids"] for reply in server.generate(PROMPTS, 40)]
        samples, report = _settled(server), server.spin()
    assert tokens == stock
    expected = _audit_probe.read(record, LAYERS)
    for layer, (audits, entries, missed) in enumerate(expected):
        assert audits == report["audits"] == samples["audits_total", None] > 80
        assert samples["audited_entries_total", str(layer)] == entries
        assert samples["missed_entries_total", str(layer)] == missed
        assert report["miss_mean"][layer] == missed / entries
    assert max(missed for _, _, missed in expected) > 0


def test_series_move_under_load_and_the_slo_acts(tmp_path: Path) -> None:
    """Every declared series appears, counters grow from load to load, and layers that miss too much
    get budget from those that miss little, which the log says and /server_info shows."""
    options = ("--spin-sparsity=0.6", "--spin-audit-every=2", "--spin-miss-slo=0.3")
    with serve(tmp_path / "server.log", *options, "--enable-metrics") as server:
        server.generate(PROMPTS, 45)
        early = _settled(server)
        server.generate(PROMPTS, 45)
        late, report = _settled(server), server.spin()
        log = server.log.read_text()
    assert {PREFIX + name for name, _ in late} == series_names()
    for layer in map(str, range(LAYERS)):
        assert late["seen_blocks_total", layer] > early["seen_blocks_total", layer] > 0
        assert late["missed_entries_total", layer] >= early["missed_entries_total", layer]
        assert 0 < late["kept_share", layer] < 1
        assert 0 <= late["miss_mean", layer] <= late["miss_p99", layer] <= 1
    assert late["seeded_rows_total", None] > early.get(("seeded_rows_total", None), 0)
    assert report["kept_blocks"] == [
        late["kept_blocks_total", str(layer)] for layer in range(LAYERS)
    ]
    assert re.search(
        r"indexer layer 0 misses 0\.\d+ of its top-k, above 0\.3: "
        r"budget moves between layers, sparsity stays 0\.6 \(0\.\d+ in 2, ",
        log,
    )
    assert late["sparsity", None] == report["sparsity"]
    shares = report["layer_sparsity"]
    assert shares == [late["layer_sparsity", str(layer)] for layer in range(LAYERS)]
    # layers 0 and 3 of this model miss the most
    assert shares[0] < shares[3] < min(shares[1], shares[2])
    assert sum(shares) / LAYERS == pytest.approx(report["sparsity"], abs=0.001)
    kept = report["kept_share"]
    assert kept[0] > kept[3] > max(kept[1], kept[2])
