"""The noise floor: how far two identical servers seem to differ on this machine."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from harness.errors import ConfigError, HarnessError
from harness.spec import Spec
from harness.spec_arm import BASELINE
from harness.stats import half_width
from harness.verdict import HIGHER_IS_BETTER

SCHEMA = 1
AGAIN = "stock-again"


def calibration_spec(spec: Spec) -> Spec:
    """The same campaign with the baseline in both arms and all the pairs that a gate may use."""
    plain = spec.model_dump()
    stock = plain["arms"][BASELINE]
    return Spec.model_validate(
        plain
        | {
            "name": f"{spec.name}-calibrate",
            "arms": {BASELINE: stock, AGAIN: stock},
            "pairs": max(2, spec.most_pairs),
            "gate": None,
        }
    )


def workload_hash(spec: Spec) -> str:
    """Of everything that decides what is measured, and of nothing else."""
    parts = spec.model_dump(mode="json", include={"workload", "window", "itl", "servers", "warmup"})
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def noise_floor(spec: Spec, summary: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """What `harness calibrate` writes. spec: as calibrated.

    sd_log: standard deviation of d = ln(again / stock) over pairs; half_width: of the 95 % interval
    of its mean with all these pairs, as a share. Raises HarnessError without two valid pairs.
    """
    metrics: dict[str, Any] = {}
    for metric in HIGHER_IS_BETTER:
        logs = [math.log(ratio) for ratio in summary["ratios"][AGAIN][metric]["per_pair"]]
        if len(logs) < 2:
            raise HarnessError("a noise floor needs two valid pairs, set pairs=2 or more")
        metrics[metric] = {
            "sd_log": stdev(logs),
            "mean_log": fmean(logs),
            "half_width": half_width(stdev(logs), len(logs)),
            "pairs": len(logs),
        }
    return {
        "schema": SCHEMA,
        "name": spec.name,
        "workload": workload_hash(spec),
        "machine": {key: about[key] for key in ("cpu", "cores", "memory_gib", "gpu_memory_mib")},
        "packages": about["packages"],
        "written_unix_s": about["written_unix_s"],
        "metrics": metrics,
    }


def check_margins(spec: Spec) -> None:
    """Refuse margins that the machine's noise cannot tell from nothing. Raises ConfigError.

    Margins below zero, which ask for a gain, are judged by their interval alone.
    """
    gate = spec.gate
    if gate is None or gate.noise_floor is None:
        return
    floor = _read_floor(Path(gate.noise_floor))
    if floor["workload"] != workload_hash(spec):
        raise ConfigError(
            [f"{gate.noise_floor}: was measured with another workload, window, itl or warm-up; "
             "run `harness calibrate` on this config again"]
        )  # fmt: skip
    problems = [
        f"gate.margins.{metric}: {margin:g} is below {least:.4f}, the least that the noise floor "
        f"allows with {spec.most_pairs} pairs ({gate.noise_floor}); raise the margin, or "
        "gate.max_pairs, or calibrate on a quieter machine"
        for metric, margin in gate.margins.model_dump().items()
        if margin is not None
        and 0 <= margin < (least := least_margin(floor["metrics"][metric], spec.most_pairs))
    ]
    if problems:
        raise ConfigError(problems)


def least_margin(measured: Mapping[str, float], pairs: int) -> float:
    """Twice the half-width that `pairs` pairs give, and no less than identical servers differed by.

    The second is for what pairs do not average out: with servers `together` each arm has one
    start, and two starts of one server need not be equally fast.
    """
    offset = math.expm1(abs(measured["mean_log"]))
    return max(2 * half_width(measured["sd_log"], pairs), offset)


def _read_floor(path: Path) -> Any:
    try:
        floor = json.loads(path.read_text(encoding="utf-8"))
        known = floor["schema"] == SCHEMA and all(m in floor["metrics"] for m in HIGHER_IS_BETTER)
    except FileNotFoundError:
        raise ConfigError(
            [f"{path}: there is no noise floor, run `harness calibrate CONFIG --out {path}`"]
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            [f"{path}: is no noise floor ({error!r}), `harness calibrate CONFIG` writes one"]
        ) from None
    if not known:
        raise ConfigError([f"{path}: is a noise floor of another harness version, calibrate again"])
    return floor


def foreign_floor(spec: Spec, about: Mapping[str, Any]) -> str | None:
    """A note when the floor was measured on another kind of machine, None otherwise.

    Asked when all is measured: by then an unreadable floor must not cost the result.
    """
    if spec.gate is None or spec.gate.noise_floor is None:
        return None
    try:
        measured = _read_floor(Path(spec.gate.noise_floor))["machine"]
    except ConfigError as error:
        return str(error)
    here = {key: about.get(key) for key in ("cpu", "cores")}
    there = {key: measured.get(key) for key in here}
    if here == there:
        return None
    return f"the noise floor is of another machine: {there['cpu']}, {there['cores']} cores"
