"""The order of the files: with two workers and a file to one of them, long ones come first."""

from __future__ import annotations

import pytest

# a minute and more on one core; of the rest, files that start servers come before those that do not
LONGEST = (
    "kernels/test_paged_logits_border.py",
    "kernels/test_fold_select_field_bugs.py",
    "kernels/test_audit.py",
    "e2e/test_soak.py",
    "compile/test_gate.py",
    "e2e/test_identity.py",
    "e2e/test_ranks.py",
    "e2e/test_v4.py",
    "state/test_lives.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files, and leave the tests of each in their order."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def rank(item: pytest.Item) -> tuple[int, bool]:
        places = [i for i, name in enumerate(LONGEST) if item.path.match(f"tests/{name}")]
        return places[0] if places else len(LONGEST), item.path not in slow

    items.sort(key=rank)
