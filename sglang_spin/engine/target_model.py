"""What the backends of both families ask of a model before the state is attached to it."""

from __future__ import annotations

from typing import Any

from sglang_spin.engine.fatal import die
from sglang_spin.engine.model_refusals import model_refusal


def is_target(model_runner: Any) -> bool:
    """False for a draft model's runner; ends the process for a model that is not served."""
    if model_runner.is_draft_worker:
        return False
    if refusal := model_refusal(model_runner.model_config.hf_config):
        die(refusal)
    return True


def layer_ids(indexers: list[Any], kind: type) -> list[int]:
    """Engine layer ids of a model's indexers, ascending; ends the process unless all are `kind`."""
    strange = {type(indexer).__name__ for indexer in indexers if type(indexer) is not kind}
    if strange:
        die(f"indexer class {', '.join(sorted(strange))} is not supported; start with --no-spin")
    return sorted(indexer.layer_id for indexer in indexers)
