"""Exports of a package that import their module when they are first used.

    __getattr__ = exports(__name__, {"sqlite.store": "check_store StoreIsBusy"})

A server starts for each session of an agent, so a command must not import a package that it does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, from the names in each of its modules, separated by spaces."""
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    return get
