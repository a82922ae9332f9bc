"""What a launcher sets to run SGLang on the CPU engine: environment and server options."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

ENV: dict[str, str] = {
    # SGLang's own switch; it also arms this package's plugin
    "SGLANG_USE_CPU_ENGINE": "1",
    # torch's OpenMP threads spin at every small operator and starve the other processes
    "OMP_NUM_THREADS": "1",
    # the heavy kernels are ours; numba's own pool sleeps between calls
    "NUMBA_THREADING_LAYER": "workqueue",
    "TORCHDYNAMO_DISABLE": "1",
    # scoring goes through SGLang's torch hook, whose function the plugin replaces
    "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1",
    "SGLANG_DISABLE_DSA_INDEXER_FUSION": "1",
    # DeepSeek-V4: the plainest of SGLang's paths through its operators
    "SGLANG_OPT_FLASHMLA_SPARSE_PREFILL": "0",
    "SGLANG_OPT_USE_TILELANG_MHC_PRE": "0",
    "SGLANG_OPT_USE_TILELANG_MHC_POST": "0",
    "SGLANG_OPT_DEEPGEMM_HC_PRENORM": "0",
    "SGLANG_OPT_FUSE_MHC_POST_PRE": "0",
    "SGLANG_OPT_USE_FUSED_HASH_TOPK": "0",
    # keep large buffers in the heap: a fresh mapping costs a page fault per 4 KiB in every layer
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
}

_COMMON: tuple[str, ...] = (
    "--device=cpu",
    "--dtype=float32",
    "--sampling-backend=pytorch",
    "--grammar-backend=none",
    "--disable-cuda-graph",
    "--context-length=65536",
    "--max-running-requests=8",
    "--chunked-prefill-size=2048",
    "--mem-fraction-static=0.3",
    "--sleep-on-idle",
)
_DSA: tuple[str, ...] = (
    "--attention-backend=dsa",
    "--page-size=64",
    "--kv-cache-dtype=bfloat16",
    "--max-total-tokens=262144",
)
_V4: tuple[str, ...] = (
    "--attention-backend=dsv4",
    "--page-size=256",
    "--kv-cache-dtype=fp8_e4m3",
    "--max-total-tokens=131072",
    # the default tenth leaves a handful of sliding-window pages, and requests wait for one forever
    "--swa-full-tokens-ratio=0.5",
)


def server_args(model: str) -> tuple[str, ...]:
    """SGLang's options for a model folder, by the family its config.json names (DSA if unknown)."""
    config = Path(model) / "config.json"
    family = json.loads(config.read_text()).get("model_type") if config.is_file() else None
    return _COMMON + (_V4 if family == "deepseek_v4" else _DSA)


_RANKS = ("--tp-size", "--tp", "--tensor-parallel-size")
_REPLICAS = ("--dp-size", "--dp", "--data-parallel-size")


def rank_environment(arguments: tuple[str, ...], cores: int) -> dict[str, str]:
    """What several ranks on one machine need: SGLang asks for a group of cores each.

    Without this it insists on a NUMA node per rank. The groups overlap where ranks outnumber cores.
    """
    ranks = _number(arguments, _RANKS) * _number(arguments, _REPLICAS)
    if ranks == 1:
        return {}
    share = max(1, cores // ranks)
    groups = [f"{i * share % cores}" for i in range(ranks)]
    return {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(groups), "NUMBA_NUM_THREADS": str(share)}


def _number(arguments: tuple[str, ...], names: tuple[str, ...]) -> int:
    """The value of an option in `--name=n` or `--name n` form, 1 if absent or no number."""
    words = [part for argument in arguments for part in argument.split("=", 1)]
    for name, value in pairwise(words):
        if name in names and value.isdecimal():
            return int(value)
    return 1
