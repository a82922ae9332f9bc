"""Reading a spec: YAML without duplicate keys, `--set key=value`, and one line per problem."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from harness.errors import ConfigError
from harness.spec import Spec


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML lets a later duplicate win silently, which loses a setting."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | None):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is a plain word", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key `{key}` is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_spec(path: Path, overrides: list[str]) -> Spec:
    """Read and check the spec. Raises ConfigError with one line per problem."""
    raw = _read_mapping(path)
    for override in overrides:
        _apply_override(raw, override)
    try:
        return Spec.model_validate(raw)
    except ValidationError as error:
        raise ConfigError([_describe(path, item) for item in error.errors()]) from None


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError([f"{path}: cannot be read ({reason}), give the path of a spec"]) from None
    try:
        raw = yaml.load(text, _UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        where = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError([f"{path}{where}: not valid YAML, {error.problem}"]) from None
    if not isinstance(raw, dict):
        raise ConfigError([f"{path}: a spec is a mapping of keys, see configs/quickstart.yaml"])
    return raw


def _apply_override(raw: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ConfigError([f"--set {override}: write --set key=value, as in --set pairs=5"])
    *parents, last = key.split(".")
    target: Any = raw
    for parent in parents:
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise ConfigError([f"--set {override}: `{parent}` is a value, not a group of keys"])
    try:
        target[last] = yaml.load(value, _UniqueKeyLoader)
    except yaml.YAMLError:
        raise ConfigError([f"--set {override}: the value is not valid YAML, quote it"]) from None


_ADVICE = {
    "extra_forbidden": "unknown key, remove it or correct its spelling",
    "missing": "missing, add it",
    "union_tag_not_found": "`kind` is missing, add it",
}
_GROUP = ("model_type", "dict_type", "model_attributes_type")


def _parts(location: tuple[int | str, ...]) -> list[str]:
    """Keys as the user wrote them: pydantic puts the chosen kind of workload in between."""
    parts = [str(part) for part in location if part != "[key]"]
    chosen = len(parts) > 1 and parts[0] == "workload" and parts[1] in ("context", "trace")
    return [parts[0], *parts[2:]] if chosen else parts


def _describe(path: Path, item: Any) -> str:
    """`file: key: what is wrong` for one pydantic error."""
    key = ".".join(_parts(item["loc"])) or "(top level)"
    given, kind = item.get("input"), item["type"]
    if kind in _GROUP or (kind == "union_tag_not_found" and not isinstance(given, dict)):
        return f"{path}: {key}: must be a group of keys, got {given!r}"
    if kind in _ADVICE:
        return f"{path}: {key}: {_ADVICE[kind]}"
    if kind == "union_tag_invalid":
        allowed = item["ctx"]["expected_tags"]
        return f"{path}: {key}.kind: must be one of {allowed}, got {item['ctx']['tag']!r}"
    message = item["msg"].removeprefix("Value error, ")
    shown = "" if isinstance(given, dict) else f", got {given!r}"
    return f"{path}: {key}: {message}{shown}"
