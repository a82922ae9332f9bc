"""The report as a page: well-formed, self-contained, and drawn by a browser where there is one."""

import base64
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.campaign import Campaign
from harness.plots import all_plots
from harness.report import CAPTIONS, render_report
from harness.runrecord import ArmRun
from harness.summary import summarise
from tests.harness.helpers import MS, make_spec
from tests.harness.test_judge import ABOUT, paced_run

VOID = {"meta", "img", "br", "link", "input"}
# what a page could load something with
LOADING = {"src", "href", "srcset", "action", "poster", "data", "background"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")


class Page(HTMLParser):
    """Checks nesting, and collects what the page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in LOADING]
        assert not any(name.startswith("on") for name, _ in attrs), f"handler on {tag}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def watch(run: ArmRun) -> None:
    """Readings of a server with two layers and of a GPU, 50 ms apart."""
    server = {("sglang:num_running_reqs", ()): 2.0, ("sglang:num_queue_reqs", ()): 0.0}
    layers = {
        (f"sglang_spin:{name}", (("layer", layer),)): 0.6
        for name in ("kept_share", "miss_mean")
        for layer in ("0", "1")
    }
    for t_ms in (0, 50, 100):
        run.telemetry.add(t_ms * MS, server | (layers if run.arm == "spin" else {}))
        run.gpus.add(t_ms * MS, {("gpu:power_w", (("gpu", "0"),)): 700.0})


def gated_page(**changes: object) -> str:
    """The report of a campaign with every part: three pairs, a gate, all plots."""
    made = Campaign(make_spec(pairs=3, gate={"parity_floor": 0.5}, **changes))
    for pair in range(3):
        for arm, itl_ms in (("stock", 10 + pair / 10), ("spin", 8.0)):
            run = paced_run(arm, pair, itl_ms)
            watch(run)
            for record in run.records:
                record.output_ids.extend(range(12))
            made.runs.append(run)
    summary = summarise(made)
    assert summary["invalid_reasons"] == []
    return render_report(summary, "name: test", ABOUT, all_plots(made, summary))


def test_page_is_well_formed_and_self_contained() -> None:
    """Tags nest, there is no script, and every reference is data inside the file."""
    page = Page()
    page.feed(gated_page())
    assert page.open == []
    assert "script" not in page.tags
    assert len(page.references) == len(CAPTIONS)
    for reference in page.references:
        kind, _, data = reference.partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data, validate=True).startswith(b"\x89PNG")


def test_page_shows_verdict_interval_and_checks() -> None:
    """What a reader looks for is there in words."""
    page = gated_page()
    assert '<p class="badge PASS">PASS</p>' in page
    assert "at least 0.980 of the baseline" in page
    assert page.count(">ok</span>") == 17
    assert "2 conversations, 2 in flight: 256 cached + 32 new tokens, 12 out" in page
    assert "c, 2 cores; 01 January 1970 00:00 UTC" in page
    assert "ITL p50 ms, request means" in page


# the page's own account of what it drew and what it asked for
PROBE = """<script>addEventListener('load', () => {
  const asked = performance.getEntriesByType('resource').map(entry => entry.name)
  document.title = JSON.stringify({
    widths: [...document.images].map(image => image.naturalWidth),
    asked: asked.filter(name => !name.startsWith('data:')),
  })
})</script></body>"""


@dataclass(frozen=True)
class Seen:
    """What a browser made of a page."""

    widths: list[int]
    asked: list[str]
    console: list[str]
    screenshot: Path


def seen_by_browser(text: str, folder: Path) -> Seen:
    """Draw a page in headless Chromium; skips the test where there is none."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    page = folder / "page.html"
    page.write_text(text.replace("</body>", PROBE))
    screenshot = folder / "page.png"
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--no-first-run",
        "--window-size=1100,6000", f"--screenshot={screenshot}", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Seen(**json.loads(unescape(title[1])), console=console, screenshot=screenshot)


@pytest.mark.slow
def test_page_in_a_real_browser(tmp_path: Path) -> None:
    """Chromium draws every image, logs nothing to its console, and the page asks for nothing."""
    seen = seen_by_browser(gated_page(), tmp_path)
    assert len(seen.widths) == len(CAPTIONS)
    assert min(seen.widths) > 500
    assert seen.asked == []
    assert seen.console == []
    assert seen.screenshot.stat().st_size > 50_000


@pytest.mark.slow
def test_browser_would_notice(tmp_path: Path) -> None:
    """The same look at a page that logs an error and asks for an image sees both."""
    bad = (
        "<html><head><title>x</title></head><body><img src='http://127.0.0.1:9/x.png'>"
        "<script>console.error('wrong')</script></body></html>"
    )
    seen = seen_by_browser(bad, tmp_path)
    assert seen.asked == ["http://127.0.0.1:9/x.png"]
    assert seen.widths == [0]
    assert any("wrong" in line for line in seen.console)
