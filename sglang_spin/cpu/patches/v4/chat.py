"""/v1/chat/completions: V4's chat encoder is a package of its own, and no server starts without."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from sglang_spin.engine.ledger import Target

_SPEC = Target(
    name="sglang.srt.entrypoints.openai.chat_encoding:resolve_chat_encoding_spec",
    expect="1459b58ece0913e3",
    why="ends a V4 server where deepseek-recipe is not installed, even if nobody chats",
    drop_when="SGLang asks for the encoder when the first chat request comes",
)

TARGETS: tuple[Target, ...] = (_SPEC,)


def register() -> None:
    """Leave V4 without a chat encoder where the package is absent: chat requests get an error."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if find_spec("deepseek_recipe") is None:
        HookRegistry.register(_SPEC.dotted, _without_recipe, HookType.AROUND)


def _without_recipe(original: Any, **options: Any) -> str | None:
    spec: str | None = original(**options)
    return None if spec == "dsv4" else spec
