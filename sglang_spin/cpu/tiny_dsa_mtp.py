"""`tiny-dsa-mtp`: `tiny-dsa` with a NextN layer, whose drafts are right part of the time.

The target's weights are those of `tiny-dsa`, so its tokens are too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_spin.cpu import tiny_dsa
from sglang_spin.cpu.tiny_folder import source_hash, write_model

if TYPE_CHECKING:
    from torch import Tensor

CONFIG: dict[str, Any] = tiny_dsa.CONFIG | {"num_nextn_predict_layers": 1}

CONTEXT = 0.3  # weight of the target's last hidden state in the draft layer's input


def fingerprint() -> str:
    """Hash of the generator's source: any change of it gives the model another folder."""
    return source_hash("tiny_dsa_mtp.py", *tiny_dsa.SOURCES)


def write(folder: Path) -> None:
    """Write config.json and model.safetensors (bf16, Hugging Face names) into `folder`."""
    from sglang_spin.cpu.tiny_dsa_weights import weights

    target = weights()
    write_model(folder, CONFIG, target | nextn_weights(target))


def nextn_weights(target: dict[str, Tensor]) -> dict[str, Tensor]:
    """The draft layer, by Hugging Face name, from the target's weights.

    It is the target's last layer, fed with the newest token's embedding (which decides between most
    successors) and a little of the target's last hidden state (which knows some of the context).
    """
    import torch

    layers, hidden = int(CONFIG["num_hidden_layers"]), int(CONFIG["hidden_size"])
    last, draft = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    copied = {
        draft + name.removeprefix(last): tensor.clone()
        for name, tensor in target.items()
        if name.startswith(last)
    }
    ones = torch.ones(hidden, dtype=torch.bfloat16)
    identity = torch.eye(hidden)
    return copied | {
        f"{draft}enorm.weight": ones,
        f"{draft}hnorm.weight": ones.clone(),
        f"{draft}eh_proj.weight": torch.cat([identity, CONTEXT * identity], 1).bfloat16(),
        f"{draft}shared_head.norm.weight": target["model.norm.weight"].clone(),
    }
