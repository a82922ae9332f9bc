"""What a parent imports before it forks, and which variables are read while it does."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import warnings
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

# what SGLang's processes spend most on
PACKAGES = (
    "torch",
    "torch._dynamo",
    "torch.distributed.tensor",
    "transformers",
    "transformers.activations",
    "transformers.modeling_gguf_pytorch_utils",
    "transformers.modeling_layers",
    "transformers.masking_utils",
    "transformers.models.auto.tokenization_auto",
    "openai.types.responses",
    "openai.types.realtime",
    "fastapi",
    "compressed_tensors.config",
    "aiohttp.web",
    "xgrammar",
    "triton",
    "IPython.display",
    "tvm_ffi",
    "requests",
    "jsonschema",
    "gguf",
    "pydantic.v1",
    "uvicorn",
    "fsspec",
    "PIL.Image",
    "zmq",
    "psutil",
    "unittest",
)

# what a scheduler and a detokenizer import before they load plugins; neither the models nor
# anything else that is imported later, such as the HTTP server, and which plugins may yet change
SGLANG = ("sglang.srt.managers.scheduler", "sglang.srt.managers.detokenizer_manager")

# variables that are read once, when packages or the C library below them are loaded
READ_ONCE = ("OMP_", "MKL_", "MALLOC_", "LD_", "PYTHON", "TORCH", "TRITON_", "CUDA_", "HF_")
READ_BY_SGLANG = ("SGLANG_", "NUMBA_", "PROMETHEUS_")


@dataclass(frozen=True)
class Loaded:
    """An interpreter that has imported its part. path: sys.path without that of its environment.

    read: the variables that were there. added: those that the packages set.
    """

    sglang: bool
    path: list[str]
    read: dict[str, str]
    added: dict[str, str]

    def fits(self, environment: dict[str, str]) -> bool:
        """Whether a process with this environment would have loaded the same."""
        if read_once(environment, self.sglang) != self.read:
            return False
        return not self.sglang or _origin(environment) == sys.modules["sglang"].__file__

    def enter(self, environment: dict[str, str]) -> None:
        """Make the environment and the import path those of a process that was just started."""
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = [str(Path.cwd()), *import_path(environment), *self.path]
        importlib.invalidate_caches()


def load(sglang: bool) -> Loaded:
    """Import the packages; with `sglang`, also what SGLang's processes begin with."""
    before = dict(os.environ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in PACKAGES + (SGLANG if sglang else ()):
            importlib.import_module(name)
    # transformers imports the stand-in for torchvision, which rests on a module of ours; who is
    # forked takes ours from its own import path
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang_spin"]:
        del sys.modules[name]
    # collections in the forked processes need not walk over all of this, nor copy its pages
    gc.collect()
    gc.freeze()
    added = {name: value for name, value in os.environ.items() if name not in before}
    # sys.path as `python -m` makes it is the current folder, PYTHONPATH, and the interpreter's own
    own = sys.path[1 + len(import_path(before)) :]
    return Loaded(sglang, own, read_once(before, sglang), added)


def read_once(environment: dict[str, str], sglang: bool) -> dict[str, str]:
    """The part of an environment that a forked process cannot change any more."""
    prefixes = READ_ONCE + (READ_BY_SGLANG if sglang else ())
    names = [n for n in environment if n.startswith(prefixes) and n != "PYTHONPATH"]
    return {name: environment[name] for name in names}


def import_path(environment: dict[str, str]) -> list[str]:
    """The folders of PYTHONPATH."""
    return [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]


def _origin(environment: dict[str, str]) -> str | None:
    """The file of the SGLang that comes first on the path of this environment."""
    found = PathFinder.find_spec("sglang", [*import_path(environment), *sys.path])
    return found and found.origin
