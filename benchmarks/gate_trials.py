"""`python -m benchmarks.gate_trials`: does the gate tell 6 % more ITL from the same server twice?

Each trial is a campaign against mock servers, with the default margins: stock, a second stock, and
an arm whose every token is 6 % late. The gate must say FAIL of the late one and must not of the
second stock. Exit 1 if it is wrong once.
"""

import argparse
import io
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from harness.command import RunCommand, execute
from harness.progress import Progress

# a step as long as a real one: what a busy machine adds to it is small against it
ITL_MS = 50.0
TOKENS = 20
DOCTORED = "late"
SAME = "again"


def spec(seed: int, late: float) -> dict[str, Any]:
    """One campaign of three arms."""
    command = "python -m harness.mock --port {port} --itl-ms "
    return {
        "name": "gate-trial",
        "seed": seed,
        "pairs": 3,
        "workload": {
            "cached_tokens": 256,
            "new_tokens": 32,
            "output_tokens": TOKENS,
            "concurrency": 4,
            "sharing": "shared",
            "prime": "once",
        },
        "arms": {
            "stock": {"command": f"{command}{ITL_MS}"},
            SAME: {"command": f"{command}{ITL_MS}"},
            DOCTORED: {"command": f"{command}{ITL_MS * (1 + late)}"},
        },
        "gate": {"max_pairs": 6},
        "warmup": {"prompt_tokens": 64, "output_tokens": 4, "max_rounds": 2, "tolerance": 0.5},
        "limits": {"repeats": 5},
    }


def trial(seed: int, late: float, folder: Path) -> dict[str, str | float]:
    """Outcomes of both arms and the median ITL ratio of each; `invalid` where it has none."""
    config = folder / "trial.yaml"
    # JSON is YAML
    config.write_text(json.dumps(spec(seed, late)))
    execute(RunCommand(config, results=folder / "results"), Progress(io.StringIO()))
    latest = folder / "results" / "gate-trial" / "latest"
    summary = json.loads((latest / "summary.json").read_text())
    if not summary["valid"]:
        return {SAME: "invalid", DOCTORED: "invalid", "why": summary["invalid_reasons"][0]}
    found: dict[str, str | float] = {"pairs": summary["pairs"]}
    for arm in (SAME, DOCTORED):
        found[arm] = summary["verdict"]["arms"][arm]["outcome"]
        found[f"{arm}_itl_ratio"] = round(summary["ratios"][arm]["itl_p50"]["estimate"], 4)
    return found


def main() -> int:
    """Run the trials, print a line each and the tally, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument(
        "--late", type=float, default=0.06, help="share by which each token is late"
    )
    parser.add_argument("--json", type=Path, help="write the outcomes here")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(1, options.trials + 1):
            rows.append(trial(seed, options.late, Path(scratch)))
            print(f"{seed:3} {json.dumps(rows[-1])}", flush=True)
    tally = {arm: dict(Counter(row[arm] for row in rows)) for arm in (DOCTORED, SAME)}
    print(json.dumps(tally))
    if options.json:
        about = {"late": options.late, "itl_ms": ITL_MS, "cores": os.cpu_count()}
        document = {"schema": 1, **about, "tally": tally, "trials": rows}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    wrong = any(row[DOCTORED] != "FAIL" or row[SAME] in ("FAIL", "invalid") for row in rows)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
