"""`harness run`: from a spec file to a result folder and an exit code."""

import asyncio
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
import yaml

from harness.campaign import Campaign, run_campaign
from harness.environment import environment
from harness.errors import EXIT_INTERRUPTED, EXIT_INVALID, EXIT_OK, HarnessError, PreflightError
from harness.plan import describe_plan
from harness.plots import all_plots
from harness.preflight import check_machine
from harness.progress import Progress
from harness.report import render_report
from harness.results import ResultFolder
from harness.specfile import load_spec
from harness.summary import summarise
from harness.table import write_requests


@dataclass(frozen=True)
class RunCommand:
    """What the user asked for."""

    config: Path
    results: Path = Path("results")
    overrides: list[str] = field(default_factory=list)
    dry_run: bool = False


def execute(command: RunCommand, progress: Progress) -> int:
    """Run the campaign and write its result; return the exit code. Raises HarnessError."""
    spec = load_spec(command.config, command.overrides)
    if command.dry_run:
        progress.say(describe_plan(spec))
        return EXIT_OK
    progress.phase("preflight", spec.name)
    check_machine(spec)
    folder = ResultFolder(command.results, spec.name)
    spec_yaml = yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False)
    folder.write_text("spec.yaml", spec_yaml)
    campaign = Campaign(spec)
    interrupted = False
    try:
        interrupted = _run_until_done_or_signal(campaign, folder.path / "servers", progress)
    except HarnessError as error:
        campaign.stopped = (
            f"preflight: {error}" if isinstance(error, PreflightError) else str(error)
        )
    finally:
        # also on a crash: raw records must survive what went wrong with them
        write_requests(folder.path / "requests.parquet", campaign.runs)
    summary = _write_result(campaign, folder, spec_yaml)
    _tell(summary, progress)
    progress.say(f"{'valid' if summary['valid'] else 'NOT VALID'}: {folder.path}/report.html")
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_OK if summary["valid"] else EXIT_INVALID


def _run_until_done_or_signal(campaign: Campaign, logs: Path, progress: Progress) -> bool:
    """True when SIGINT or SIGTERM ended the campaign early; servers are down either way."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        async def supervised() -> bool:
            task = asyncio.ensure_future(run_campaign(campaign, logs, progress))
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, task.cancel)
            try:
                await task
            except asyncio.CancelledError:
                campaign.stopped = "interrupted"
                return True
            return False

        return runner.run(supervised())


def _write_result(campaign: Campaign, folder: ResultFolder, spec_yaml: str) -> dict[str, Any]:
    summary = summarise(campaign)
    about = environment(campaign.spec, campaign.servers)
    plots = all_plots(campaign, summary)
    folder.write_json("env.json", about)
    for name, png in plots.items():
        (folder.path / name).write_bytes(png)
    folder.write_text("report.html", render_report(summary, spec_yaml, about, plots))
    # last, so that a folder with a summary is a complete one
    folder.write_json("summary.json", summary)
    folder.point_latest()
    return summary


def _tell(summary: dict[str, Any], progress: Progress) -> None:
    for arm, figures in summary["arms"].items():
        if figures["output_tok_s"] is not None and figures["itl_ms"]["p50"] is not None:
            progress.say(
                f"{arm:8s} {figures['output_tok_s']:8.1f} tok/s   "
                f"ITL p50 {figures['itl_ms']['p50']:.2f} ms"
            )
    for arm, ratios in summary["ratios"].items():
        for name, ratio in ratios.items():
            if ratio["ci95"] is not None:
                low, high = ratio["ci95"]
                progress.say(
                    f"{arm}/stock {name}: {ratio['estimate']:.3f} (95 % {low:.3f} to {high:.3f})"
                )
    for note in summary["notes"]:
        progress.say(f"note: {note}")
    for reason in summary["invalid_reasons"]:
        progress.say(f"INVALID: {reason}")
