"""The whole campaign: servers, pairs in alternating order, and the runs that came of it."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.client import open_session
from harness.control import ServerFacts, server_facts
from harness.counters import CounterError
from harness.errors import HarnessError, PreflightError
from harness.fleet import Fleet
from harness.phases import RunContext, run_arm
from harness.preflight import check_server
from harness.progress import Progress
from harness.proof import proof_notes
from harness.runrecord import ArmRun
from harness.server import Server
from harness.spec import Spec
from harness.stats import interleaved_order
from harness.warden import POLL_S
from harness.wire import WIRES

DEATH_S = 2 * POLL_S


@dataclass
class Campaign:
    """Fills up while it runs, so that an interruption leaves what was there.

    servers: facts of each arm's server as it first answered.
    stopped: why the campaign ended before all runs were done, None otherwise.
    """

    spec: Spec
    runs: list[ArmRun] = field(default_factory=list)
    servers: dict[str, ServerFacts] = field(default_factory=dict)
    stopped: str | None = None

    def invalid_reasons(self) -> list[str]:
        """Everything that makes the result no result."""
        reasons = [f"{run.label}: {problem}" for run in self.runs for problem in run.problems]
        if self.stopped is not None:
            reasons.append(self.stopped)
        done = sum(not run.problems for run in self.runs)
        expected = self.spec.pairs * len(self.spec.arms)
        if done < expected and not reasons:
            reasons.append(f"only {done} of {expected} runs were done")
        return reasons + self._basis_problems()

    def notes(self) -> list[str]:
        """What a reader should know but what does not invalidate."""
        unsteady = [
            f"{run.label}: warm-up was not steady, its rounds gave "
            + ", ".join(f"{rate:.1f}" for rate in run.warm_tok_s)
            + " tok/s"
            for run in self.runs
            if run.warm_tok_s and not run.warm_steady
        ]
        loaded = [run for run in self.runs if run.records]
        return unsteady + [
            f"{run.label}: {note}" for run in loaded for note in proof_notes(run.telemetry)
        ]

    def _basis_problems(self) -> list[str]:
        bases = {
            arm: sorted(
                {str(r.itl_basis) for run in self.runs if run.arm == arm for r in run.records}
            )
            for arm in self.spec.arms
        }
        present = {arm: basis for arm, basis in bases.items() if basis}
        if len({tuple(basis) for basis in present.values()}) < 2:
            return []
        shown = ", ".join(f"{arm} {'/'.join(basis)}" for arm, basis in present.items())
        return [f"itl_basis: the arms count tokens differently and cannot be compared: {shown}"]


async def run_campaign(campaign: Campaign, log_folder: Path, progress: Progress) -> None:
    """Run every pair; servers are down when this returns, however it returns.

    Raises PreflightError when a server cannot start or cannot run the workload.
    """
    spec = campaign.spec
    fleet = Fleet(spec, log_folder, progress)
    try:
        if spec.servers == "together":
            await fleet.start_all()
            for arm in spec.arms:
                await _examine(campaign, await fleet.server(arm))
        for pair, order in enumerate(interleaved_order(list(spec.arms), spec.pairs, spec.seed)):
            for position, arm in enumerate(order):
                run = ArmRun(arm=arm, pair=pair, position=position)
                await _one_run(campaign, await fleet.server(arm), run, progress)
                if run.problems and spec.stop_on_invalid:
                    return
    finally:
        fleet.stop()


async def _examine(campaign: Campaign, server: Server) -> ServerFacts:
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


async def _one_run(campaign: Campaign, server: Server, run: ArmRun, progress: Progress) -> None:
    campaign.runs.append(run)
    facts = campaign.servers.get(run.arm) or await _examine(campaign, server)
    try:
        async with open_session(server.base_url) as session:
            await run_arm(RunContext(campaign.spec, session, facts, progress), run)
    except asyncio.CancelledError:
        run.problems.append("interrupted")
        raise
    if run.problems:
        # a dying server closes its streams a little before its process ends
        await asyncio.sleep(DEATH_S)
    if not server.alive():
        run.problems.append(f"the server ended: {server.why()}")
    for problem in run.problems:
        progress.say(f"        INVALID   {run.label}: {problem}")
