"""`python -m sglang_spin`: the doctor. Versions, device, and the ledger line by line."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version

from sglang_spin import __version__
from sglang_spin.config import from_env
from sglang_spin.cpu.patches import PATCHES
from sglang_spin.engine.install import TARGETS
from sglang_spin.engine.ledger import (
    GOOD,
    SGLANG_VERSION,
    Finding,
    inspect_target,
    installed_version,
)

_PACKAGES = ("torch", "triton", "transformers", "sglang-kernel", "sgl-deep-gemm", "numba")


def main() -> int:
    """Print the report; 0 if a server would start with SPIN, 1 if it would refuse."""
    parser = argparse.ArgumentParser(prog="python -m sglang_spin", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    report = examine()
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print(render(report))
    return 0 if report["ok"] else 1


def examine() -> dict[str, object]:
    """Everything the doctor knows, as plain values."""
    findings = [inspect_target(t) for t in (*TARGETS, *PATCHES)]
    version_ok = installed_version() == SGLANG_VERSION
    plugins = sorted(e.name for e in entry_points(group="sglang.srt.plugins"))
    return {
        "ok": version_ok and "spin" in plugins and all(f.status in GOOD for f in findings),
        "sglang_spin": __version__,
        "sglang": {"installed": installed_version(), "needed": SGLANG_VERSION},
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "device": _device(),
        "plugins": plugins,
        "enabled_by_environment": from_env().enabled,
        "ledger": [_row(f) for f in findings],
    }


def render(report: dict[str, object]) -> str:
    """The report as text, one fact a line."""
    lines = []
    for key, value in report.items():
        if key == "ledger":
            assert isinstance(value, list)
            lines.append(f"ledger: {len(value)} upstream bodies")
            lines += [f"  {row['status']:8} {row['target']}  {row['detail']}" for row in value]
        elif key != "ok":
            lines.append(f"{key}: {_inline(value)}")
    verdict = "a server would start with SPIN" if report["ok"] else "a server would refuse to start"
    return "\n".join([*lines, f"verdict: {verdict}"])


def _inline(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v or 'none'}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _row(finding: Finding) -> dict[str, str]:
    target = finding.target
    return {
        "target": target.name,
        "status": finding.status,
        "detail": finding.detail,
        "why": target.why,
        "drop_when": target.drop_when,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device() -> str:
    import torch

    if not torch.cuda.is_available():
        return f"cpu ({platform.machine()})"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join(names)


if __name__ == "__main__":
    sys.exit(main())
