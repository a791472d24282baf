"""The step types `CreateFile` and `ReadFile`."""

from __future__ import annotations

import base64
import re
from typing import Any, Literal

from pydantic import Field, field_validator

from workflows_mcp.errors import StepError
from workflows_mcp.limits import MIB
from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepOutputs, StepResult
from workflows_mcp.values import Value, to_text


def encoded(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except LookupError:
        raise StepError(f"there is no encoding '{encoding}'", hint="use utf-8") from None
    except UnicodeEncodeError as error:
        raise StepError(
            f"the text cannot be written as {encoding}: it has no {text[error.start]!a}", hint="use utf-8"
        ) from None


class CreateFileInputs(StepInputs):
    path: str = Field(description="The path of the file, relative to the workspace.")
    content: str = Field(description="The text of the file, written unchanged.")
    permissions: str | None = Field(
        None,
        alias="mode",
        description=(
            'Its permissions, in octal digits as for chmod: 755, "755", "0755" and 0o755 are all rwxr-xr-x. '
            "By default an existing file keeps its permissions, and a new one gets those of the system."
        ),
    )
    encoding: str = Field("utf-8", description="The encoding of the text.")
    overwrite: bool = Field(True, description="Whether to replace an existing file; false: it is an error.")
    create_parents: bool = Field(True, description="Whether to create missing directories.")

    @field_validator("content", mode="before")
    @classmethod
    def _content_as_text(cls, content: Any) -> str:
        return to_text(content)

    @field_validator("permissions", mode="before")
    @classmethod
    def _octal_digits(cls, permissions: Any) -> str | None:
        if permissions is None:
            return None
        if isinstance(permissions, int) and not isinstance(permissions, bool):
            permissions = _octal_digits(permissions)
        digits = permissions.strip().lower().removeprefix("0o") if isinstance(permissions, str) else ""
        if not re.fullmatch("[0-7]{1,4}", digits):
            raise ValueError(f"permissions are octal digits, such as 644, not {permissions!r}")
        return digits


def _octal_digits(number: int) -> str:
    """Return the octal digits of permissions that YAML has read as a number: 755, or 0o755, which is 493.

    A number that looks like octal digits is read as octal digits, unless it is the value of common
    permissions: 0o644 is 420, and nobody means r---w----.
    """
    if number in _COMMON or not re.fullmatch("[0-7]{3,4}", str(number)):
        return f"{number:o}"
    return str(number)


_COMMON = frozenset(
    {0o400, 0o440, 0o444, 0o600, 0o640, 0o644, 0o664, 0o666, 0o700, 0o750, 0o755, 0o775, 0o777}
)


class CreateFileOutputs(StepOutputs):
    path: str = ""
    file_path: str = ""
    size_bytes: int = 0
    created: bool = False
    success: bool = False


class CreateFile(Step):
    """Writes a file atomically.

    `created` says whether the file is new. Missing directories are created unless `create_parents` is false.
    """

    name = "CreateFile"
    Inputs = CreateFileInputs
    Outputs = CreateFileOutputs
    level = "trusted"
    capabilities = frozenset({"write_files"})

    def run(self, inputs: CreateFileInputs, context: StepContext) -> StepResult:
        path = context.world.path_for_writing(inputs.path)
        data = encoded(inputs.content, inputs.encoding)
        created = context.world.write(
            path,
            data,
            permissions=None if inputs.permissions is None else int(inputs.permissions, 8),
            overwrite=inputs.overwrite,
            create_parents=inputs.create_parents,
        )
        return StepResult(
            {
                "path": str(path),
                "file_path": str(path),
                "size_bytes": len(data),
                "created": created,
                "success": True,
            }
        )


class ReadFileInputs(StepInputs):
    path: str = Field(description="The file to read, relative to the workspace.")
    mode: Literal["text", "binary"] = Field("text", description="binary returns the content in base64.")
    encoding: str = Field("utf-8", description="The encoding of the text; ignored for binary.")
    max_size_mb: float = Field(10, gt=0, description="A larger file is an error.")
    required: bool = Field(True, description="Whether a missing file is an error; false: found is false.")


class ReadFileOutputs(StepOutputs):
    content: str = ""
    path: str = ""
    size_bytes: int = 0
    found: bool = False
    encoding: str = ""
    success: bool = False


class ReadFile(Step):
    """Reads a file into `content`, as text or, with `mode: binary`, in base64."""

    name = "ReadFile"
    Inputs = ReadFileInputs
    Outputs = ReadFileOutputs
    level = "trusted"
    capabilities = frozenset({"read_files"})

    def changes_world(self, inputs: dict[str, Value]) -> bool:
        return False

    def run(self, inputs: ReadFileInputs, context: StepContext) -> StepResult:
        path = context.world.path_for_reading(inputs.path)
        most = int(inputs.max_size_mb * MIB)
        if most <= context.world.limits.file_bytes:
            data = context.world.read(path, most=most, limit_hint="raise max_size_mb of the block")
        else:
            data = context.world.read(path)
        if data is None and inputs.required:
            raise StepError(f"there is no file {path}", hint="set required: false if the file is optional")
        encoding = "base64" if inputs.mode == "binary" else inputs.encoding
        return StepResult(
            {
                "content": "" if data is None else _content(data, inputs, str(path)),
                "path": str(path),
                "size_bytes": 0 if data is None else len(data),
                "found": data is not None,
                "encoding": encoding,
                "success": True,
            }
        )


def _content(data: bytes, inputs: ReadFileInputs, path: str) -> str:
    if inputs.mode == "binary":
        return base64.b64encode(data).decode("ascii")
    try:
        return data.decode(inputs.encoding)
    except LookupError:
        raise StepError(f"there is no encoding '{inputs.encoding}'", hint="use utf-8") from None
    except UnicodeDecodeError as error:
        raise StepError(
            f"{path} is not {inputs.encoding} text: byte {error.start} is {data[error.start]:#04x}",
            hint="set its encoding, or read it with mode: binary",
        ) from None
