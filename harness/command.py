"""`harness run`, `resume`, `calibrate` and `report`: what happens between options and exit code."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.campaign import Campaign
from harness.environment import environment
from harness.errors import EXIT_INTERRUPTED, EXIT_OK, ConfigError
from harness.finish import exit_code, only_noise, spec_text, tell, write_result
from harness.noise import calibration_spec, check_margins, least_margin, noise_floor
from harness.plan import describe_plan
from harness.preflight import check_machine, check_prompts
from harness.progress import Progress
from harness.results import ResultFolder
from harness.runrecord import ArmRun
from harness.runstore import RunStore, write_whole
from harness.session import run_session
from harness.spec import Spec
from harness.specfile import load_spec
from harness.summary import summarise
from harness.verdict import Outcome


@dataclass(frozen=True)
class RunCommand:
    """What the user asked for. tolerate_noise: exit 0 where noise alone left no verdict."""

    config: Path
    results: Path = Path("results")
    overrides: list[str] = field(default_factory=list)
    dry_run: bool = False
    tolerate_noise: bool = False


def execute(command: RunCommand, progress: Progress) -> int:
    """Run the campaign and write its result; return the exit code. Raises HarnessError."""
    spec = load_spec(command.config, command.overrides)
    check_margins(spec)
    if command.dry_run:
        progress.say(describe_plan(spec))
        return EXIT_OK
    code, folder = _new_campaign(spec, command.results, progress)
    if command.tolerate_noise and only_noise(folder.read_json("summary.json")):
        progress.say("no verdict: this machine was too noisy; --tolerate-noise makes it exit 0")
        return EXIT_OK
    return code


def calibrate(command: RunCommand, out: Path, progress: Progress) -> int:
    """Run the baseline against itself and write the noise floor; return the exit code."""
    spec = calibration_spec(load_spec(command.config, command.overrides))
    if not out.parent.is_dir():
        raise ConfigError([f"--out {out}: there is no folder {out.parent}, make it"])
    if command.dry_run:
        progress.say(describe_plan(spec))
        return EXIT_OK
    code, folder = _new_campaign(spec, command.results, progress)
    if code != EXIT_OK:
        return code
    floor = noise_floor(spec, folder.read_json("summary.json"), folder.read_json("env.json"))
    write_whole(out, (json.dumps(floor, indent=2) + "\n").encode())
    for metric, found in floor["metrics"].items():
        progress.say(
            f"noise floor of {metric}: half-width {found['half_width']:.2%} with "
            f"{found['pairs']} pairs, offset {math.expm1(found['mean_log']):+.2%}; margins from "
            f"{least_margin(found, found['pairs']):.2%} on can be used"
        )
    progress.say(f"noise floor: {out}")
    return EXIT_OK


def resume(path: Path, progress: Progress) -> int:
    """Go on with an interrupted campaign in its own folder; return the exit code."""
    folder = ResultFolder.existing(path)
    with folder.locked():
        campaign = load_campaign(folder)
        done = campaign.done_pairs()
        again = [run for run in campaign.runs if run.pair not in done]
        campaign.stopped = None
        if not again and _complete(campaign):
            progress.say("nothing to resume, every pair is done")
            return _finish(campaign, folder, progress, _about(folder))
        check_prompts(campaign.spec)
        check_machine(campaign.spec)
        progress.phase("resume", f"{len(done)} pairs are done, {len(again)} runs are done again")
        # from here on the folder is no complete result
        (folder.path / "summary.json").unlink(missing_ok=True)
        _keep_in(campaign, folder)
        campaign.put_off(again)
        return _work(campaign, folder, progress)


def rebuild(path: Path, progress: Progress) -> int:
    """Write report, tables and summary anew from the stored runs; return the exit code."""
    folder = ResultFolder.existing(path)
    with folder.locked():
        return _finish(load_campaign(folder), folder, progress, _about(folder))


def _about(folder: ResultFolder) -> dict[str, Any]:
    about: dict[str, Any] = folder.read_json("env.json") or {"servers": {}}
    return about


def load_campaign(folder: ResultFolder) -> Campaign:
    """The campaign as far as its folder holds it."""
    campaign = Campaign(load_spec(folder.path / "spec.yaml", []))
    campaign.runs = RunStore(folder.path).load()
    campaign.stopped = (folder.read_json("summary.json") or {}).get("stopped")
    campaign.redone = folder.read_json("redone.json") or []
    return campaign


def undecided(campaign: Campaign) -> bool:
    """Would more pairs help? Only where a gate could not decide from valid runs."""
    if campaign.invalid_reasons():
        return False
    verdict = summarise(campaign)["verdict"]
    return verdict is not None and verdict["outcome"] == Outcome.INCONCLUSIVE


def _complete(campaign: Campaign) -> bool:
    pairs = len(campaign.done_pairs())
    spec = campaign.spec
    return pairs >= spec.most_pairs or (pairs == spec.pairs and not undecided(campaign))


def _new_campaign(spec: Spec, results: Path, progress: Progress) -> tuple[int, ResultFolder]:
    progress.phase("preflight", spec.name)
    check_prompts(spec)
    check_machine(spec)
    folder = ResultFolder.create(results, spec.name)
    with folder.locked():
        folder.write_text("spec.yaml", spec_text(spec))
        return _work(Campaign(spec), folder, progress), folder


def _work(campaign: Campaign, folder: ResultFolder, progress: Progress) -> int:
    _keep_in(campaign, folder)
    campaign.undecided = undecided
    folder.point_latest()
    interrupted = run_session(campaign, folder.path / "servers", progress)
    about = environment(campaign.spec, campaign.servers)
    code = _finish(campaign, folder, progress, about)
    return EXIT_INTERRUPTED if interrupted else code


def _keep_in(campaign: Campaign, folder: ResultFolder) -> None:
    """Have the folder follow what happens to the campaign's runs."""
    store = RunStore(folder.path)

    def put_off(runs: list[ArmRun]) -> None:
        folder.write_json("redone.json", campaign.redone)
        store.drop(runs)

    campaign.on_run, campaign.on_put_off = store.save, put_off


def _finish(
    campaign: Campaign, folder: ResultFolder, progress: Progress, about: dict[str, Any]
) -> int:
    summary = write_result(campaign, folder, about)
    tell(summary, folder, progress)
    return exit_code(summary)
