"""Exports of a package whose modules are imported only when a name of them is used.

    __getattr__ = exports(__name__, {"sqlite.store": "check_store StoreIsBusy"})

A server starts for each session of an agent, so a package that a command does not use must cost it nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: the names of each of its modules, between spaces."""
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    return get
