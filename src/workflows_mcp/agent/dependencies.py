"""What a field of a reactive state follows from, and what follows from it. Read off the plan alone.

Dependencies(plan).of("valid_files")
# direct_deps ["raw.git_files"], all_deps ["raw.git_files"], dependents ["computed.file_batches", …]
"""

from __future__ import annotations

from collections.abc import Iterable

from workflows_mcp.errors import RequestError
from workflows_mcp.machine.computed import mentioned
from workflows_mcp.plan.model import Plan
from workflows_mcp.plan.references import LANGUAGES
from workflows_mcp.values import Value, did_you_mean

PARTS = ("raw", "state", "computed", "inputs", "config")


class Dependencies:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        language = LANGUAGES[plan.dialect]
        self._direct: dict[str, list[str]] = {}
        for name, spec in plan.computed.items():
            paths = [*spec.sources, *(".".join(map(str, path)) for path in mentioned(spec, language))]
            if spec.static:
                paths = []
            self._direct[f"computed.{name}"] = _once(self.spelt(path) for path in paths)

    def spelt(self, path: str) -> str:
        """A path with the part that its field is in: `files` is `raw.files`, or `computed.files`."""
        head = path.partition(".")[0]
        if head in PARTS:
            return path
        plan = self._plan
        if head in plan.computed:
            return f"computed.{path}"
        for part in ("raw", "state"):
            if head in plan.initial_state.get(part, {}) or (part == "raw" and head in plan.raw_types):
                return f"{part}.{path}"
        if head in plan.inputs:
            return f"inputs.{path}"
        return f"config.{path}" if head in plan.config else f"raw.{path}"

    def of(self, field: str) -> dict[str, Value]:
        """Raises RequestError, with what there is, where there is no such field."""
        spelt = self.spelt(field.strip())
        if not self._is_known(spelt):
            known = [*self._plan.computed, *self._plan.known, *self._plan.inputs]
            raise RequestError(
                f"the workflow '{self._plan.name}' has no field '{field}'",
                hint=did_you_mean(field.rpartition(".")[2], known, what="its fields are"),
                code="invalid_path",
            )
        return {
            "direct_deps": self._direct.get(spelt, []),
            "all_deps": self.behind(spelt),
            "dependents": self._dependents(spelt),
        }

    def behind(self, spelt: str) -> list[str]:
        """All that a field follows from, the nearest first."""
        found: list[str] = []
        waiting = list(self._direct.get(_field(spelt), []))
        while waiting:
            path = waiting.pop(0)
            if path not in found:
                found.append(path)
                waiting += self._direct.get(_field(path), [])
        return found

    def _dependents(self, spelt: str) -> list[str]:
        """All that changes, or may change, when it does."""
        found = [spelt]
        for _ in self._direct:
            more = [
                name
                for name, paths in self._direct.items()
                if name not in found and any(_meet(path, it) for path in paths for it in found)
            ]
            if not more:
                break
            found += more
        return found[1:]

    def _is_known(self, spelt: str) -> bool:
        part, _, rest = spelt.partition(".")
        name, plan = rest.partition(".")[0], self._plan
        if part == "computed":
            return name in plan.computed
        if part == "inputs":
            return name in plan.inputs
        if part == "config":
            return name in plan.config
        declared = {*plan.known, *plan.raw_types, *plan.initial_state.get(part, {})} - set(plan.computed)
        return name in declared or (part == "raw" and name in plan.inputs)


def _field(path: str) -> str:
    """The field that a path leads into: raw.results.total is in raw.results."""
    return ".".join(path.split(".")[:2])


def _meet(one: str, other: str) -> bool:
    """Whether one path is the other, or leads through it."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _once(paths: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(paths))
