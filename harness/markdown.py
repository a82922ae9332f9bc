"""The result as a few Markdown lines for a pull request."""

from collections.abc import Mapping
from typing import Any

_METRICS = {"output_tok_s": "output tok/s", "itl_p50": "median ITL"}


def markdown_summary(summary: Mapping[str, Any]) -> str:
    """Verdict or validity first, then one table, then what a reader should know."""
    lines = [f"### {_text(summary['name'])}: {_headline(summary)}", ""]
    lines += [f"- not valid: {_text(reason)}" for reason in summary["invalid_reasons"]]
    if summary["invalid_reasons"]:
        lines.append("")
    lines += [
        "| arm | metric | stock | arm's | ratio | 95 % interval | must be | |",
        "|---|---|---|---|---|---|---|---|",
        *_rows(summary),
        "",
        f"{summary['pairs']} pairs, window `{summary['window']}`, ITL convention "
        f"`{summary['itl']}`; t-interval on log ratios of pairs.",
    ]
    if same := not_shown(summary):
        lines.append(f"- the interval contains 1, so no difference is shown: {', '.join(same)}")
    lines += [f"- note: {_text(note)}" for note in summary["notes"]]
    return "\n".join(lines) + "\n"


def not_shown(summary: Mapping[str, Any]) -> list[str]:
    """Arm and metric of the ratios whose interval contains 1: they may as well be equal."""
    return [
        f"{arm} {title}"
        for arm, ratios in summary["ratios"].items()
        for metric, title in _METRICS.items()
        if (ci95 := ratios[metric]["ci95"]) is not None and ci95[0] <= 1 <= ci95[1]
    ]


def _headline(summary: Mapping[str, Any]) -> str:
    if not summary["valid"]:
        return "NOT VALID"
    verdict = summary["verdict"]
    return "valid, no gate" if verdict is None else str(verdict["outcome"])


def _rows(summary: Mapping[str, Any]) -> list[str]:
    rows: list[str] = []
    for arm, ratios in summary["ratios"].items():
        checks = _checks(summary, arm)
        for metric, title in _METRICS.items():
            ratio, check = ratios[metric], checks.get(metric, {})
            interval = "n/a"
            if ratio["ci95"] is not None:
                interval = f"{ratio['ci95'][0]:.3f} to {ratio['ci95'][1]:.3f}"
            stock, own = (_value(summary["arms"][name], metric) for name in ("stock", arm))
            rows.append(
                f"| {arm} | {title} | {stock} | {own} | {_number(ratio['estimate'], 3)} "
                f"| {interval} | {check.get('rule', '')} | {check.get('outcome', '')} |"
            )
        share = summary["parity"][arm]["equal_prefix_share"]
        check = checks.get("parity", {})
        rows.append(
            f"| {arm} | equal answer until first difference | | {_number(share, 3)} | | "
            f"| {check.get('rule', '')} | {check.get('outcome', '')} |"
        )
    return rows


def _checks(summary: Mapping[str, Any], arm: str) -> dict[str, Any]:
    if summary["verdict"] is None:
        return {}
    return {check["check"]: check for check in summary["verdict"]["arms"][arm]["checks"]}


def _value(figures: Mapping[str, Any], metric: str) -> str:
    if metric == "output_tok_s":
        return _number(figures["output_tok_s"], 1)
    return f"{_number(figures['itl_ms']['p50'], 2)} ms"


def _number(value: float | None, digits: int) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def _text(text: str) -> str:
    """Server text must not become markup: no tags, no table cells, no line breaks."""
    plain = " ".join(text.split())
    for character in "\\`*_[]<>|":
        plain = plain.replace(character, "\\" + character)
    return plain
