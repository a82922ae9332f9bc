"""Writing a result: figures, report and tables from the runs, the summary last."""

from collections.abc import Mapping
from typing import Any

import yaml

from harness.campaign import Campaign
from harness.csvtables import requests_csv, runs_csv
from harness.errors import EXIT_INVALID, EXIT_OK
from harness.markdown import markdown_summary
from harness.noise import foreign_floor
from harness.plots import all_plots
from harness.progress import Progress
from harness.report import render_report
from harness.results import ResultFolder
from harness.spec import Spec
from harness.summary import summarise
from harness.table import requests_parquet
from harness.telemetry_table import telemetry_parquet
from harness.validity import client_was_the_limit
from harness.verdict import EXIT_CODES, Outcome


def spec_text(spec: Spec) -> str:
    """The whole spec with every default filled in."""
    return yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, width=100)


def write_result(
    campaign: Campaign, folder: ResultFolder, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Write every file and return the summary. A folder with a summary is a complete one."""
    summary = summarise(campaign)
    if (note := foreign_floor(campaign.spec, about)) is not None:
        summary["notes"].append(note)
    plots = all_plots(campaign, summary)
    folder.write_bytes("requests.parquet", requests_parquet(campaign.runs))
    folder.write_bytes("telemetry.parquet", telemetry_parquet(campaign.runs))
    folder.write_text("requests.csv", requests_csv(campaign.runs))
    folder.write_text("runs.csv", runs_csv(summary))
    folder.write_json("env.json", about)
    for name, png in plots.items():
        folder.write_bytes(name, png)
    page = render_report(summary, spec_text(campaign.spec), about, plots)
    folder.write_text("report.html", page)
    folder.write_text("summary.md", markdown_summary(summary))
    folder.write_json("summary.json", summary)
    return summary


def exit_code(summary: Mapping[str, Any]) -> int:
    """0 valid (and passed, where the spec has a gate), 1 failed, 2 not valid, 3 inconclusive."""
    if not summary["valid"]:
        return EXIT_INVALID
    verdict = summary["verdict"]
    return EXIT_OK if verdict is None else EXIT_CODES[Outcome(verdict["outcome"])]


def only_noise(summary: Mapping[str, Any]) -> bool:
    """Is there no verdict, and the machine's noise the only reason?

    Either the interval was too wide for the margins, or the client was the limit in every run that
    does not count.
    """
    if summary["valid"]:
        verdict = summary["verdict"]
        return bool(verdict and verdict["outcome"] == Outcome.INCONCLUSIVE)
    problems = [problem for run in summary["runs"] for problem in run["problems"]]
    return client_was_the_limit(problems) and len(problems) == len(summary["invalid_reasons"])


def tell(summary: Mapping[str, Any], folder: ResultFolder, progress: Progress) -> None:
    """The result in a few lines."""
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
                same = ", no difference is shown" if low <= 1 <= high else ""
                progress.say(
                    f"{arm}/stock {name}: {ratio['estimate']:.3f} "
                    f"(95 % {low:.3f} to {high:.3f}{same})"
                )
    for note in summary["notes"]:
        progress.say(f"note: {note}")
    for reason in summary["invalid_reasons"]:
        progress.say(f"INVALID: {reason}")
    tell_verdict(summary["verdict"], progress)
    progress.say(f"{'valid' if summary['valid'] else 'NOT VALID'}: {folder.path}/report.html")


def tell_verdict(verdict: Mapping[str, Any] | None, progress: Progress) -> None:
    """One line for each check, and the outcome."""
    if verdict is None:
        return
    for arm, judged in verdict["arms"].items():
        for check in judged["checks"]:
            found = "n/a" if check["estimate"] is None else f"{check['estimate']:.3f}"
            progress.say(
                f"{check['outcome']:12s} {arm} {check['check']}: {found}, must be {check['rule']}"
                if check["check"] != "parity"
                else f"{check['outcome']:12s} {arm} parity: {found}; {check['rule']}"
            )
    progress.say(f"verdict: {verdict['outcome']}")
