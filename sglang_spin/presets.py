"""Model names the launcher knows, and what each needs."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Preset:
    """A public model. path: its id. arguments: SGLang options that an explicit option overrides.

    parameters: in billions, from the model card. weight_gib: least GPU memory for the weights
    alone, at half a byte per parameter (4-bit experts) or one byte (fp8), whichever is published.
    tiny: the model of the same family that any machine can run.
    """

    name: str
    path: str
    arguments: tuple[str, ...]
    parameters: int
    bytes_per_parameter: float
    tiny: str

    @property
    def weight_gib(self) -> int:
        return round(self.parameters * 1e9 * self.bytes_per_parameter / GIB)


_V4 = ("--tp-size=8", "--page-size=256")
_DSA = ("--tp-size=8", "--attention-backend=dsa", "--page-size=64")

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("deepseek-v4-flash", "deepseek-ai/DeepSeek-V4-Flash", _V4, 284, 0.5, "tiny-v4"),
        Preset("deepseek-v4-pro", "deepseek-ai/DeepSeek-V4-Pro", _V4, 1600, 0.5, "tiny-v4"),
        Preset("deepseek-v3.2", "deepseek-ai/DeepSeek-V3.2", _DSA, 671, 1.0, "tiny-dsa"),
        Preset("glm-5", "zai-org/GLM-5-FP8", _DSA, 744, 1.0, "tiny-dsa"),
    )
}


def fit_problem(preset: Preset, gpu_bytes: int) -> str | None:
    """Why the model cannot be held by GPUs with that much memory in all, or None."""
    need = f"{preset.name} has {preset.parameters}B parameters, at least {preset.weight_gib} GiB"
    if gpu_bytes == 0:
        return (
            f"{need} of GPU memory, and this machine has no NVIDIA GPU; try --model {preset.tiny}"
        )
    if gpu_bytes < preset.weight_gib * GIB:
        have = gpu_bytes // GIB
        return f"{need}, and the GPUs here hold {have} GiB in all; try --model {preset.tiny}"
    return None
