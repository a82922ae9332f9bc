"""Dataclasses to plain JSON values and back, guided by their type hints.

Handles what the records of a run are made of: numbers, strings, None, lists, tuples, dicts, arrays
of whole or real numbers, optional values, and dataclasses of these. A dict whose keys are no
strings becomes a list of pairs; NaN in an array becomes null.
"""

import math
from array import array
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class _ArrayHint:
    """Stands for array.array, which Python 3.11 cannot subscript, while hints are read."""

    def __class_getitem__(cls, item: type) -> object:
        return Annotated[array, item]


class CodecError(Exception):
    """The values do not fit the type."""


def encode(value: Any) -> Any:
    """Plain values: what json can write."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: encode(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: encode(item) for key, item in value.items()}
        return [[encode(key), encode(item)] for key, item in value.items()]
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, array):
        # millions of items: no call for each
        return value.tolist() if value.typecode == "q" else [encode(item) for item in value]
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], value: Any) -> T:
    """The dataclass `kind` from plain values. Raises CodecError; unknown fields are an error."""
    made: T = _decode(kind, value)
    return made


def _decode(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _decode_optional(arguments, value)
    if kind is Any or kind is NoneType or origin is Literal:
        return value
    if is_dataclass(kind):
        return _decode_dataclass(kind, value)
    if origin is Annotated:
        return _decode_array(kind.__metadata__[0], value)
    if origin is list:
        return [_decode(arguments[0], item) for item in value]
    if origin is tuple:
        return _decode_tuple(arguments, value)
    if origin is dict:
        pairs = value.items() if isinstance(value, dict) else value
        return {_decode(arguments[0], key): _decode(arguments[1], item) for key, item in pairs}
    if not isinstance(value, float if kind is float and isinstance(value, float) else (kind, int)):
        raise CodecError(f"{value!r} is no {kind.__name__}")
    return kind(value)


def _decode_array(item: type, value: Any) -> "array[Any]":
    if item is int:
        return array("q", value)
    return array("d", (math.nan if number is None else number for number in value))


def _decode_optional(kinds: tuple[Any, ...], value: Any) -> Any:
    others = [kind for kind in kinds if kind is not NoneType]
    if value is None and len(others) < len(kinds):
        return None
    if len(others) != 1:
        raise CodecError(f"cannot tell which of {others} is meant")
    return _decode(others[0], value)


def _decode_tuple(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_decode(kinds[0], item) for item in value)
    return tuple(_decode(kind, item) for kind, item in zip(kinds, value, strict=True))


def _decode_dataclass(kind: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise CodecError(f"{kind.__name__} needs an object, got {value!r:.80}")
    hints = get_type_hints(kind, localns={"array": _ArrayHint}, include_extras=True)
    known = {item.name for item in fields(kind) if item.init}
    if unknown := sorted(set(value) - known):
        raise CodecError(f"{kind.__name__} has no field {unknown[0]}")
    try:
        return kind(**{name: _decode(hints[name], item) for name, item in value.items()})
    except (TypeError, ValueError) as error:
        raise CodecError(f"{kind.__name__}: {error}") from None
