"""Re-exports that import a submodule when a name is first used (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["exports"]


def exports(package: str, table: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`: each name is looked up in its submodule.

    Args:
        package: the package's `__name__`.
        table: submodule by exported name.
    """

    def get(name: str) -> Any:
        if name not in table:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{table[name]}"), name)

    return get
