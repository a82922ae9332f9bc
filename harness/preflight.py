"""Can this machine, and can this server, run the spec? Asked before anything is loaded."""

import os
import shutil
import subprocess

from harness.control import ServerFacts
from harness.errors import PreflightError
from harness.prompts import request_ids
from harness.server import command_line
from harness.spec import Spec
from harness.spec_content import FileIds
from harness.work import asks_of, longest_request, resident_tokens

GIB = 1 << 30
MIB = 1 << 20


def check_prompts(spec: Spec) -> None:
    """Raises ConfigError when a file of prompts, a corpus or a trace does not give the workload.

    Before any server is started: that can take half an hour.
    """
    asks = asks_of(spec)
    if not isinstance(spec.workload.content, FileIds):
        # generated prompts differ in nothing but their length
        asks = (max(asks, key=lambda ask: ask.prompt_tokens),)
    for ask in asks:
        request_ids(spec, 0, ask.index)


def check_machine(spec: Spec) -> None:
    """Raises PreflightError when a requirement or a program of a command is missing."""
    _check_gpus(spec)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if memory < spec.requires.memory_gib * GIB:
        raise PreflightError(
            f"{spec.name} needs {spec.requires.memory_gib} GiB of memory (requires.memory_gib), "
            f"this machine has {memory // GIB}"
        )
    for name, arm in spec.arms.items():
        if arm.command is None:
            continue
        program = command_line(arm, port=0)[0]
        if shutil.which(program) is None:
            raise PreflightError(f"arm {name}: program `{program}` is not installed")


def _check_gpus(spec: Spec) -> None:
    requires = spec.requires
    if not requires.gpus:
        return
    gpus = gpu_memories_mib()
    need = f"{requires.gpus} GPUs of at least {requires.gpu_memory_gib} GiB (requires.gpus)"
    # drivers report a little less than the nominal size
    large = [size for size in gpus if size >= 0.95 * requires.gpu_memory_gib * GIB / MIB]
    if len(large) < requires.gpus:
        has = ", ".join(f"{size / 1024:.0f} GiB" for size in gpus) or "none"
        raise PreflightError(f"{spec.name} needs {need}, this machine has {has}")


def gpu_memories_mib() -> list[int]:
    """Memory of each NVIDIA GPU by nvidia-smi; empty without driver or device."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) for line in answer.stdout.split() if line.isdigit()]


def check_server(spec: Spec, arm: str, facts: ServerFacts) -> None:
    """Raises PreflightError when the server is not the arm's, or cannot hold the workload."""
    expects_spin = spec.arms[arm].spin is not None
    if expects_spin and facts.spin is None:
        raise PreflightError(
            f"arm {arm}: /server_info has no spin block, the server is stock; give its command "
            "--spin-sparsity, or take `spin` from the arm"
        )
    if not expects_spin and facts.spin is not None:
        raise PreflightError(
            f"arm {arm}: the server runs SPIN, but the spec says it must not; start it with "
            "--no-spin, or give the arm `spin: {target_sparsity: ...}`"
        )
    need = resident_tokens(spec)
    if need is not None and facts.capacity_tokens is not None and need > facts.capacity_tokens:
        raise PreflightError(
            f"arm {arm}: the workload needs {need} KV entries, the server holds "
            f"{facts.capacity_tokens}; lower concurrency or lengths, or share the context"
        )
    longest = longest_request(spec)
    if facts.max_prompt_tokens is not None and longest > facts.max_prompt_tokens:
        raise PreflightError(
            f"arm {arm}: requests grow to {longest} tokens, the server takes prompts up to "
            f"{facts.max_prompt_tokens}; lower the lengths or raise its context length"
        )
