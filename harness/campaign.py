"""The whole campaign: servers, pairs in alternating order, and the runs that came of it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.client import open_session
from harness.comparable import comparison_notes, comparison_problems
from harness.control import ServerFacts, server_facts
from harness.counters import CounterError
from harness.errors import HarnessError, PreflightError
from harness.fleet import AnyServer, Fleet
from harness.phases import run_arm
from harness.preflight import check_server
from harness.progress import Progress
from harness.proof import proof_notes
from harness.runcontext import RunContext
from harness.runrecord import ArmRun
from harness.spec import Spec
from harness.spec_workload import ContextWork
from harness.stats import interleaved_order
from harness.validity import client_was_the_limit
from harness.warden import POLL_S
from harness.wire import WIRES

DEATH_S = 2 * POLL_S


@dataclass
class Campaign:
    """Fills up while it runs, so that an interruption leaves what was there.

    servers: facts of each arm's server as it first answered.
    stopped: why the campaign ended before all runs were done, None otherwise.
    redone: runs that did not count and were done again.
    on_run: called with every run that has ended, whether or not it counts.
    on_put_off: called with the runs of a pair that will be done again.
    undecided: asked once, after `pairs`; if it says yes, pairs are added up to gate.max_pairs.
    """

    spec: Spec
    runs: list[ArmRun] = field(default_factory=list)
    servers: dict[str, ServerFacts] = field(default_factory=dict)
    stopped: str | None = None
    redone: list[str] = field(default_factory=list)
    on_run: Callable[[ArmRun], None] = lambda _: None
    on_put_off: Callable[[list[ArmRun]], None] = lambda _: None
    undecided: Callable[["Campaign"], bool] = lambda _: False

    @property
    def pairs(self) -> int:
        """Pairs that the result must have: those of the spec, or more once some were added."""
        begun = max((run.pair + 1 for run in self.runs), default=0)
        return self.spec.pairs if begun <= self.spec.pairs else self.spec.most_pairs

    def done_pairs(self) -> set[int]:
        """Pairs of which every arm has a run that counts."""
        sound = {(run.arm, run.pair) for run in self.runs if not run.problems}
        return {pair for _, pair in sound if all((arm, pair) in sound for arm in self.spec.arms)}

    def put_off(self, again: list[ArmRun]) -> None:
        """These runs will be done again; a reader is told."""
        self.redone += [f"{run.label}: {'; '.join(run.problems) or 'its pair'}" for run in again]
        these = {id(run) for run in again}
        self.runs = [run for run in self.runs if id(run) not in these]
        self.on_put_off(again)

    def invalid_reasons(self) -> list[str]:
        """Everything that makes the result no result."""
        reasons = [f"{run.label}: {problem}" for run in self.runs for problem in run.problems]
        if self.stopped is not None:
            reasons.append(self.stopped)
        done = sum(not run.problems for run in self.runs)
        expected = self.pairs * len(self.spec.arms)
        if done < expected and not reasons:
            reasons.append(f"only {done} of {expected} runs were done")
        return reasons + comparison_problems(self.runs, self.spec)

    def notes(self) -> list[str]:
        """What a reader should know but what does not invalidate."""
        redone = [f"done again: {text}" for text in self.redone]
        unsteady = [
            f"{run.label}: warm-up was not steady, its rounds gave "
            + ", ".join(f"{rate:.1f}" for rate in run.warm_tok_s)
            + " tok/s"
            for run in self.runs
            if run.warm_tok_s and not run.warm_steady
        ]
        loaded = [run for run in self.runs if run.records]
        proof = [f"{run.label}: {note}" for run in loaded for note in proof_notes(run.telemetry)]
        return redone + unsteady + proof + comparison_notes(self.runs, self.spec)


async def run_campaign(campaign: Campaign, log_folder: Path, progress: Progress) -> None:
    """Run every pair that is not done; servers are down when this returns, however it returns.

    Raises PreflightError when a server cannot start or cannot run the workload.
    """
    spec = campaign.spec
    fleet = Fleet(spec, log_folder, progress)
    try:
        if spec.servers == "together":
            await fleet.start_all()
            for arm in spec.arms:
                await _examine(campaign, await fleet.server(arm))
        await _run_pairs(campaign, fleet, progress)
    finally:
        fleet.stop()


async def _run_pairs(campaign: Campaign, fleet: Fleet, progress: Progress) -> None:
    spec = campaign.spec
    began = time.monotonic()
    done, sitting = campaign.done_pairs(), _Sitting(spec.limits.repeats)
    for pair, order in enumerate(interleaved_order(list(spec.arms), spec.most_pairs, spec.seed)):
        if pair in done:
            continue
        late = bool(spec.limits.campaign_s and time.monotonic() - began > spec.limits.campaign_s)
        if pair == spec.pairs:
            if late or not campaign.undecided(campaign):
                return
            progress.say(f"inconclusive: pairs are added up to {spec.most_pairs}")
        if late:
            campaign.stopped = "limits.campaign_s has passed; `harness resume` goes on"
            return
        while not await _one_pair(campaign, fleet, progress, sitting, pair, order):
            progress.say(f"pair {pair + 1} is done again: the client was the limit")
        if spec.stop_on_invalid and any(run.problems for run in campaign.runs):
            return


@dataclass
class _Sitting:
    """repeats: how often a pair may still be done again. primed: arms whose cache holds the
    contexts of `prime: once`."""

    repeats: int
    primed: set[str] = field(default_factory=set)


async def _one_pair(
    campaign: Campaign,
    fleet: Fleet,
    progress: Progress,
    sitting: _Sitting,
    pair: int,
    order: Sequence[str],
) -> bool:
    """Run every arm; False if the pair was put off and is to be done again at once."""
    spec = campaign.spec
    for position, arm in enumerate(order):
        run = ArmRun(arm=arm, pair=pair, position=position)
        await _one_run(campaign, await fleet.server(arm), run, progress, arm in sitting.primed)
        if sitting.repeats and client_was_the_limit(run.problems):
            sitting.repeats -= 1
            campaign.put_off([run for run in campaign.runs if run.pair == pair])
            # the caches hold this pair's prompts now
            sitting.primed.clear()
            return False
        if run.problems and spec.stop_on_invalid:
            break
        if run.primed and _primes_once(spec):
            sitting.primed.add(arm)
    return True


def _primes_once(spec: Spec) -> bool:
    return isinstance(spec.workload, ContextWork) and spec.workload.prime == "once"


async def _examine(campaign: Campaign, server: AnyServer) -> ServerFacts:
    """Read and check a server's facts. Raises PreflightError."""
    arm = campaign.spec.arms[server.name]
    async with open_session(server.base_url) as session:
        try:
            facts = replace(await server_facts(session), wire=WIRES[arm.api])
        except (HarnessError, CounterError) as error:
            raise PreflightError(f"arm {server.name}: {error}") from None
    check_server(campaign.spec, server.name, facts)
    campaign.servers.setdefault(server.name, facts)
    return facts


async def _one_run(
    campaign: Campaign, server: AnyServer, run: ArmRun, progress: Progress, still_primed: bool
) -> None:
    facts = campaign.servers.get(run.arm) or await _examine(campaign, server)
    campaign.runs.append(run)
    ended = False
    try:
        async with open_session(server.base_url) as session:
            await run_arm(RunContext(campaign.spec, session, facts, progress, still_primed), run)
        if run.problems:
            # a dying server closes its streams a little before its process ends
            await asyncio.sleep(DEATH_S)
        if not server.alive():
            run.problems.append(f"the server ended: {server.why()}")
        ended = True
    finally:
        if not ended:
            run.problems.append("interrupted")
        campaign.on_run(run)
    for problem in run.problems:
        progress.say(f"        INVALID   {run.label}: {problem}")
