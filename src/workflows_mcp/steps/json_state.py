"""The step types `ReadJSONState`, `WriteJSONState` and `MergeJSONState` keep a JSON object in a file.

Files are written atomically. Concurrent merges, also in different processes, never lose an update.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field

from workflows_mcp.errors import StepError
from workflows_mcp.policy import World
from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepOutputs, StepResult
from workflows_mcp.values import Value, from_json, kind_of, to_json


class ReadJSONStateInputs(StepInputs):
    path: str = Field(description="The file, relative to the workspace.")
    required: bool = Field(False, description="Whether a missing file is an error; false: data is {}.")


class ReadJSONStateOutputs(StepOutputs):
    data: Any = Field(default_factory=dict)
    found: bool = False
    path: str = ""


class ReadJSONState(Step):
    """Reads a JSON file into `data`; `found` says whether the file exists."""

    name = "ReadJSONState"
    Inputs = ReadJSONStateInputs
    Outputs = ReadJSONStateOutputs
    level = "trusted"
    capabilities = frozenset({"read_files"})

    def changes_world(self, inputs: dict[str, Value]) -> bool:
        return False

    def run(self, inputs: ReadJSONStateInputs, context: StepContext) -> StepResult:
        path = context.world.path_for_reading(inputs.path)
        content = context.world.read(path)
        if content is None and inputs.required:
            raise StepError(f"there is no file {path}", hint="set required: false if the file is optional")
        data = {} if content is None else _parsed(content, path)
        return StepResult({"data": data, "found": content is not None, "path": str(path)})


class WriteJSONStateInputs(StepInputs):
    path: str = Field(description="The file, relative to the workspace.")
    data: Any = Field(description="What to write.")
    create_parents: bool = Field(True, description="Whether to create missing directories.")


class WriteJSONStateOutputs(StepOutputs):
    path: str = ""
    size_bytes: int = 0


class WriteJSONState(Step):
    """Writes data to a JSON file, and replaces its content."""

    name = "WriteJSONState"
    Inputs = WriteJSONStateInputs
    Outputs = WriteJSONStateOutputs
    level = "trusted"
    capabilities = frozenset({"write_files"})

    def run(self, inputs: WriteJSONStateInputs, context: StepContext) -> StepResult:
        path = context.world.path_for_writing(inputs.path)
        with context.world.only_writer_of(path, create_parents=inputs.create_parents):
            size = _write(context.world, path, inputs.data)
        return StepResult({"path": str(path), "size_bytes": size})


class MergeJSONStateInputs(StepInputs):
    path: str = Field(description="The file, relative to the workspace.")
    updates: dict[str, Any] = Field(description="The updates: objects are merged, anything else is replaced.")
    create_if_missing: bool = Field(
        True, description="Whether to create a missing file; false: it is an error."
    )
    create_parents: bool = Field(True, description="Whether to create missing directories.")


class MergeJSONStateOutputs(StepOutputs):
    path: str = ""
    created: bool = False
    merged_data: dict[str, Any] = Field(default_factory=dict)


class MergeJSONState(Step):
    """Merges updates into a JSON file: objects at every depth; anything else is replaced."""

    name = "MergeJSONState"
    Inputs = MergeJSONStateInputs
    Outputs = MergeJSONStateOutputs
    level = "trusted"
    capabilities = frozenset({"read_files", "write_files"})

    def run(self, inputs: MergeJSONStateInputs, context: StepContext) -> StepResult:
        path = context.world.path_for_writing(inputs.path)
        with context.world.only_writer_of(
            path, create_parents=inputs.create_parents and inputs.create_if_missing
        ):
            content = context.world.read(path)
            if content is None and not inputs.create_if_missing:
                raise StepError(f"there is no file {path}", hint="set create_if_missing: true to create it")
            before = {} if content is None else _parsed(content, path)
            if not isinstance(before, dict):
                raise StepError(
                    f"{path} contains {kind_of(before)}: updates can only be merged into an object"
                )
            merged = _merged(before, inputs.updates)
            _write(context.world, path, merged)
        return StepResult({"path": str(path), "created": content is None, "merged_data": merged})


def _merged(before: dict[str, Value], updates: dict[str, Value]) -> dict[str, Value]:
    merged = dict(before)
    for key, value in updates.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _write(world: World, path: Path, data: Value) -> int:
    content = (to_json(data, indent=2) + "\n").encode()
    world.write(path, content, create_parents=False)
    return len(content)


def _parsed(content: bytes, path: Path) -> Value:
    try:
        return from_json(content)
    except ValueError as error:
        place, reason = "", str(error)
        try:
            json.loads(content)
        except json.JSONDecodeError as found:  # the slower parser knows the line
            place, reason = f":{found.lineno}:{found.colno}", found.msg
        except UnicodeDecodeError:
            reason = "it is not UTF-8 text"
        raise StepError(f"{path}{place} is not valid JSON: {reason}") from None
