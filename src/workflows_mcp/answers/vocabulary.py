"""The names of tools and fields in answers, for each toolset that drives runs.

    STATEFUL.submit_call("wf_1", "build")        # submit_step_result(workflow_id='wf_1', step_id='build', …)
    REACTIVE.instructions("Run parameters.command …")                    # Run definition.command …

Step types write `parameters.NAME` in their instructions, as in the core, and know no toolset.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

_PARAMETER = re.compile(r"(<?)\bparameters\.(\w+)")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    submit: str
    """The tool that takes the result of a step."""
    field: str = "parameters.{}"
    """How instructions name a parameter of the step."""
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Parameters with another name."""

    def submit_call(self, workflow_id: str, step_id: str) -> str:
        return f"{self.submit}(workflow_id='{workflow_id}', step_id='{step_id}', result=…)"

    def instructions(self, text: str, *, as_before: Container[str] = ()) -> str:
        """Translate the instructions of a step. `as_before`: parameters that stay under `parameters`."""

        def put(found: re.Match[str]) -> str:
            opening, name = found.groups()
            if name in as_before:
                return found[0]
            called = self.field.format(self.renamed.get(name, name))
            return f"<{called.strip('`')}" if opening else called

        return _PARAMETER.sub(put, text)


CORE = Vocabulary("submit_result")
STATEFUL = Vocabulary("submit_step_result", "`{}`")
REACTIVE = Vocabulary("workflow_step_complete", "definition.{}", {"tool": "method", "args": "params"})
