"""Names of packages that do not exist on the CPU engine: they can be imported, but not called."""

from __future__ import annotations

from typing import Any


class _Absent(type):
    """A class whose attributes are absent too, and which raises when it is called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{cls.__qualname__}.{name}")

    def __call__(cls, *_args: object, **_options: object) -> Any:
        raise NotImplementedError(
            f"{cls.__qualname__} was called, but the CPU engine has no such kernel; "
            "choose options that do not need it"
        )


def absent(qualified: str) -> Any:
    """A stand-in for the object `qualified`: good for imports, annotations and base classes."""
    return _Absent(qualified.rsplit(".", 1)[-1], (), {"__qualname__": qualified})


def attributes_of(module: str) -> Any:
    """The module-level __getattr__ of a stand-in module."""

    def lookup(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"stand-in module {module!r} has no attribute {name!r}")
        return absent(f"{module}.{name}")

    return lookup
