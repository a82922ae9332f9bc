"""How each client is started and where its own figures stand."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
PROMPT_TOKENS = 32

_SGLANG = """
import runpy, sys
sys.path += sys.argv.pop(1).split(":")
runpy.run_module("sglang.benchmark.serving", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Case:
    """So many streams at once, of so many tokens, one every itl_ms."""

    streams: int
    tokens: int
    itl_ms: float

    @property
    def events_per_s(self) -> float:
        """What the server offers."""
        return self.streams / self.itl_ms * 1e3


@dataclass(frozen=True)
class Client:
    """command(case, url, folder) is run in `folder`; read(folder, stdout) gives its figures."""

    name: str
    command: Callable[[Case, str, Path], list[str]]
    read: Callable[[Path, str], Figures]
    environment: dict[str, str]


def ours() -> Client:
    """The harness's client, in a process of its own."""

    def command(case: Case, url: str, _: Path) -> list[str]:
        module = [sys.executable, "-m", "benchmarks.client_overhead.ours", "--url", url]
        return [*module, "--streams", str(case.streams), "--tokens", str(case.tokens)]

    def read(_: Path, stdout: str) -> Figures:
        return dict(json.loads(stdout.splitlines()[-1]))

    # it is run in a scratch folder
    return Client("ours", command, read, {"PYTHONPATH": str(Path(__file__).parents[2])})


def aiperf(program: str) -> Client:
    """NVIDIA's aiperf, server token counts, no telemetry and no dashboard."""

    def command(case: Case, url: str, folder: Path) -> list[str]:
        # offline it looks for tokenizers in the hub's cache alone
        cache = folder / "hub" / "models--local--words"
        write_tokenizer(cache / "snapshots" / "1")
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text("1")
        count = str(case.streams)
        return [
            *(
                "env",
                f"HF_HOME={folder}",
                program,
                "profile",
                "-m",
                "mock",
                "--url",
                url,
                "--endpoint-type",
                "completions",
            ),
            *("--streaming", "--concurrency", count, "--request-count", count),
            *("--isl", str(PROMPT_TOKENS), "--osl", str(case.tokens), "--tokenizer", "local/words"),
            *("--use-server-token-count", "--ui", "none", "--no-gpu-telemetry"),
            *("--no-server-metrics", "--artifact-dir", str(folder)),
        ]

    def read(folder: Path, _: str) -> Figures:
        found = json.loads((folder / "profile_export_aiperf.json").read_text())
        itl = found.get("inter_token_latency") or {}
        return {
            "failed": _average(found, "error_request_count") or 0,
            "completed": _average(found, "request_count"),
            "itl_p50_ms": itl.get("p50"),
            "itl_p99_ms": itl.get("p99"),
        }

    return Client("aiperf", command, read, {"PYTHONPATH": ""})


def _average(found: Figures, name: str) -> float | None:
    return (found.get(name) or {}).get("avg")


def sglang(extra_path: str) -> Client:
    """SGLang's own client (bench_serving) on the OpenAI endpoint."""

    def command(case: Case, url: str, folder: Path) -> list[str]:
        write_tokenizer(folder)
        count = str(case.streams)
        return [
            *(sys.executable, "-c", _SGLANG, extra_path, "--backend", "sglang-oai"),
            *("--base-url", url, "--model", "mock", "--tokenizer", str(folder)),
            *("--dataset-name", "random-ids", "--num-prompts", count, "--max-concurrency", count),
            *("--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(case.tokens)),
            *("--random-range-ratio", "1", "--warmup-requests", "0", "--disable-tqdm"),
            *("--output-file", str(folder / "sglang.jsonl")),
        ]

    def read(folder: Path, _: str) -> Figures:
        found = json.loads((folder / "sglang.jsonl").read_text().splitlines()[-1])
        return {
            "completed": found["completed"],
            "itl_p50_ms": found["median_itl_ms"],
            "itl_p99_ms": found["p99_itl_ms"],
        }

    return Client("sglang", command, read, {"PYTHONPATH": ""})


def write_tokenizer(folder: Path) -> None:
    """A word-level tokenizer of 1,024 words, so that nothing is fetched."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    words = {"<unk>": 0} | {f"t{index}": index for index in range(1, 1024)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def available(
    aiperf_program: str | None, sglang_path: str | None
) -> tuple[list[Client], list[str]]:
    """Clients that can be run here, and a line for each that cannot."""
    clients, missing = [ours()], []
    program = shutil.which(aiperf_program or "aiperf")
    if program is None:
        missing.append("aiperf: not installed; give --aiperf the path of its program")
    else:
        clients.append(aiperf(os.path.realpath(program)))
    if sglang_path is None:
        missing.append("sglang: give --sglang-path the folder of what its client needs (datasets)")
    else:
        # it is run in a scratch folder
        folders = [str(Path(folder).resolve()) for folder in sglang_path.split(":")]
        clients.append(sglang(":".join(folders)))
    return clients, missing
