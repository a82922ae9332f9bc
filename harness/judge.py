"""`harness gate` and `harness compare`: from results on disk to a verdict or a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.comparison import comparison_table, gate_against, require_comparable
from harness.errors import EXIT_OK, ConfigError, HarnessError, ResultError
from harness.finish import tell_verdict
from harness.markdown import markdown_summary
from harness.noise import check_margins
from harness.progress import Progress
from harness.results import ResultFolder
from harness.spec import Spec
from harness.spec_gate import Gate
from harness.specfile import load_spec
from harness.verdict import EXIT_CODES, Outcome, verdict


@dataclass(frozen=True)
class GateCommand:
    """What the user asked for. overrides change the spec's gate, as in gate.margins.itl_p50=0.05.

    markdown: file that the Markdown summary is appended to.
    """

    result: Path
    baseline: Path | None = None
    overrides: tuple[str, ...] = ()
    markdown: Path | None = None


def gate(command: GateCommand, progress: Progress) -> int:
    """Judge a result, by itself or against an earlier one; return the exit code.

    Raises HarnessError; a result that is not valid is a ResultError, exit 2.
    """
    folder = ResultFolder.existing(command.result)
    spec = _gated_spec(folder, command.overrides)
    summary = read_summary(folder)
    require_comparable({str(command.result): summary})
    assert spec.gate is not None
    if command.baseline is None:
        judged = verdict(summary, spec.gate)
    else:
        earlier = read_summary(ResultFolder.existing(command.baseline))
        require_comparable({str(command.baseline): earlier, str(command.result): summary})
        judged = gate_against(summary, earlier, spec.gate)
        progress.say("ratios to stock, this result over the baseline:")
    tell_verdict(judged, progress)
    if command.markdown is not None:
        # against a baseline the campaign's own table says something else than the verdict
        shown = summary | {"verdict": judged if command.baseline is None else None}
        text = markdown_summary(shown) + _against(command, judged)
        _append(command.markdown, text)
    return EXIT_CODES[Outcome(judged["outcome"])]


def compare(paths: Sequence[Path], progress: Progress) -> int:
    """Print several results side by side. Raises HarnessError when they cannot be compared."""
    results = {str(path): read_summary(ResultFolder.existing(path)) for path in paths}
    if len(results) < 2:
        raise ResultError("give at least two different result folders")
    require_comparable(results)
    for line in comparison_table(results):
        progress.say(line)
    return EXIT_OK


def read_summary(folder: ResultFolder) -> dict[str, Any]:
    """The summary of a finished campaign. Raises ResultError when there is none."""
    summary = folder.read_json("summary.json")
    if summary is None:
        raise ResultError(
            f"{folder.path}: has no summary.json, the campaign did not end; `harness resume` "
            "goes on with it"
        )
    if not isinstance(summary, dict) or "ratios" not in summary or "work" not in summary:
        raise ResultError(
            f"{folder.path}: is of another harness version, rebuild it with `harness report`"
        )
    return summary


def _gated_spec(folder: ResultFolder, overrides: Sequence[str]) -> Spec:
    foreign = [text for text in overrides if not text.startswith("gate.")]
    if foreign:
        raise ConfigError([f"--set {foreign[0]}: only keys of `gate` can be changed afterwards"])
    path = folder.path / "spec.yaml"
    spec = load_spec(path, [])
    # without a gate of its own a result is judged by the default margins
    base = Gate() if spec.gate is None else spec.gate
    written = [f"gate={base.model_dump_json()}", *overrides]
    spec = load_spec(path, written)
    check_margins(spec)
    return spec


def _against(command: GateCommand, judged: Mapping[str, Any]) -> str:
    if command.baseline is None:
        return ""
    lines = [f"\nAgainst {command.baseline.name}: **{judged['outcome']}**\n"]
    for arm, found in judged["arms"].items():
        for check in found["checks"]:
            shown = "n/a" if check["estimate"] is None else f"{check['estimate']:.3f}"
            lines.append(f"- {arm} {check['check']}: {shown}, {check['rule']}: {check['outcome']}")
    return "\n".join(lines) + "\n"


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise HarnessError(f"{path}: cannot be written ({error.strerror})") from None
