"""The inputs of a workflow as the arguments of a tool: under names that the APIs of models take, and with
schemas that say all there is to say.

    arguments = Arguments.of({"properties": {"due date": {"type": "string"}}})
    arguments.parameters["properties"]        # {"due_date": {…, "description": "The input 'due date'"}}
    arguments.meant({"due_date": "today"})    # {"due date": "today"}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from workflows_mcp.errors import InvalidInputs
from workflows_mcp.mcp_server.tooling import said_in_full

_CHARS = 64
_TAKEN = re.compile(rf"[a-zA-Z0-9_.-]{{1,{_CHARS}}}")
"""What an argument may be called: an API that is sent another name refuses all tools that came with it."""
_OTHERS = re.compile(r"[^a-zA-Z0-9_.-]+")
_NAMELESS = "input"


class Arguments(NamedTuple):
    inputs: dict[str, str]
    """The input that each argument stands for."""
    parameters: dict[str, Any]
    """Their JSON Schema."""

    @classmethod
    def of(cls, declared: Mapping[str, Any]) -> Arguments:
        """`declared`: the JSON Schema of the inputs."""
        schemas: Mapping[str, Any] = declared.get("properties", {})
        inputs = argument_names(schemas)
        arguments = {name: argument for argument, name in inputs.items()}
        parameters = {
            **declared,
            "properties": {
                argument: _schema(schemas[name], argument, name) for argument, name in inputs.items()
            },
            "required": [arguments[name] for name in declared.get("required", ())],
        }
        return cls(inputs, parameters)

    def meant(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs. What is no argument is an input by its own name: the workflow takes it, or not."""
        given: dict[str, Any] = {}
        for argument, value in sent.items():
            name = self.inputs.get(argument, argument)
            if name in given:
                declared = next(it for it, meant in self.inputs.items() if meant == name)
                raise InvalidInputs(f"the input '{name}' is given twice", hint=f"give only '{declared}'")
            given[name] = value
        return given


def argument_names(inputs: Iterable[str]) -> dict[str, str]:
    """The inputs by what their arguments are called. Names that are taken as they are keep to themselves."""
    names = list(inputs)
    found = {name: name for name in names if _TAKEN.fullmatch(name)}
    for name in names:
        if name not in found.values():
            found[_free(_OTHERS.sub("_", name).strip("_") or _NAMELESS, found)] = name
    order = {name: position for position, name in enumerate(names)}
    return dict(sorted(found.items(), key=lambda item: order[item[1]]))


def _free(wanted: str, taken: Mapping[str, str]) -> str:
    name, number = wanted[:_CHARS], 2
    while name in taken:
        ending = f"_{number}"
        name, number = wanted[: _CHARS - len(ending)] + ending, number + 1
    return name


def _schema(declared: Mapping[str, Any], argument: str, name: str) -> dict[str, Any]:
    schema = said_in_full(declared)
    if argument == name:
        return schema
    about = str(schema.get("description", "")).strip()
    said = f"{about} (the input '{name}')" if about else f"The input '{name}'"
    return {**schema, "description": said}
