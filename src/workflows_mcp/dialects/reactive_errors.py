"""What a reactive document says of failures as a whole: `error_handling` of a workflow and of a task.

error_handling:
  on_error: retry_workflow
  max_retries: 2
  error_collection: {enabled: true, state_path: raw.workflow_errors}
  on_failure: [{type: user_message, message: "Workflow failed: {{ error.message }}"}]
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workflows_mcp.dialects.document_keys import unknown_keys
from workflows_mcp.dialects.reactive_drafts import ReactiveDraft
from workflows_mcp.dialects.reactive_paths import Keys
from workflows_mcp.dialects.reactive_steps import StepReader
from workflows_mcp.dialects.step_keys import read_word
from workflows_mcp.errors import Problem
from workflows_mcp.plan.conversion import converted
from workflows_mcp.plan.references import Use
from workflows_mcp.values import Value, kind_and_value

Path = tuple[str | int, ...]

KEYS = ("on_error", "max_retries", "error_collection", "on_failure")
TASK_KEYS = ("return_on_error", "cleanup_on_error")
ON_ERROR = ("checkpoint_and_fail", "continue", "retry_workflow")
COLLECTION_KEYS = ("enabled", "state_path", "include_stack_traces")
COLLECTED_AT = "raw.workflow_errors"
"""Where errors of steps are collected if nothing is said of it."""
MOST_TRIES = 100


@dataclass(slots=True)
class ErrorHandling:
    goes_on: bool = False
    """Steps that say nothing of their failures do not end the workflow by them."""
    tries: int = 1
    errors_to: Keys = ()
    steps: list[ReactiveDraft] = field(default_factory=list)
    """What is carried out when it has failed."""
    uses: list[Use] = field(default_factory=list)


class ErrorReader:
    def __init__(self, reader: StepReader) -> None:
        self.reader = reader

    def read(self, given: Value, path: Path, *, of_task: bool) -> ErrorHandling:
        handling = ErrorHandling()
        if given is None:
            return handling
        if not isinstance(given, dict):
            message = f"'error_handling' must be a mapping, not {kind_and_value(given)}"
            self.reader.problem("wrong_type", message, "e.g. error_handling: {on_error: continue}", path)
            return handling
        keys = TASK_KEYS if of_task else KEYS
        for problem in unknown_keys(given, keys, path, "'error_handling'"):
            self.reader.report(problem)
        if of_task:
            self._of_task(given, path)
        else:
            self._of_workflow(given, path, handling)
        steps = "cleanup_on_error" if of_task else "on_failure"
        if given.get(steps) not in (None, []):
            handling.steps = self.reader.read_list(given[steps], (*path, steps))
        return handling

    def _of_task(self, given: dict[str, Value], path: Path) -> None:
        if given.get("return_on_error") is None:
            return
        where = (*path, "return_on_error")
        if not self.reader.flag(given["return_on_error"], where, "write true, or remove it"):
            message = "the failure of a task is always told to the workflow"
            hint = "to go on all the same, the parallel_foreach says on_sub_agent_error: {strategy: continue}"
            if given["return_on_error"] is False:
                self.reader.problem("wrong_value", message, hint, where)

    def _of_workflow(self, given: dict[str, Value], path: Path, handling: ErrorHandling) -> None:
        word = None
        if given.get("on_error") is not None:
            word = read_word(given["on_error"], ON_ERROR, (*path, "on_error"), self.reader.report)
        handling.goes_on = word == "continue"
        if word == "retry_workflow":
            handling.tries = 1 + self._retries(given.get("max_retries"), (*path, "max_retries"))
        elif given.get("max_retries") is not None:
            message = "'max_retries' is for on_error: retry_workflow"
            hint = "write on_error: retry_workflow, or remove it"
            self.reader.problem("unknown_key", message, hint, (*path, "max_retries"), on_key=True)
        if given.get("error_collection") is not None:
            self._collection(given["error_collection"], (*path, "error_collection"), handling)

    def _retries(self, given: Value, path: Path) -> int:
        if given is None:
            return 1
        hint = "how often the workflow is carried out again, e.g. max_retries: 2"
        try:
            number: int = converted(given, "integer")
        except ValueError as error:
            self.reader.problem("wrong_type", f"'max_retries' {error}", hint, path)
            return 1
        if not 1 <= number < MOST_TRIES:
            message = f"'max_retries' must be from 1 to {MOST_TRIES - 1}, not {number}"
            self.reader.problem("wrong_value", message, hint, path)
            return 1
        return number

    def _collection(self, given: Value, path: Path, handling: ErrorHandling) -> None:
        reader = self.reader
        if isinstance(given, bool):
            given = {"enabled": given}
        if not isinstance(given, dict):
            message = f"'error_collection' must be a mapping, not {kind_and_value(given)}"
            reader.problem("wrong_type", message, "e.g. error_collection: {enabled: true}", path)
            return
        for problem in unknown_keys(given, COLLECTION_KEYS, path, "'error_collection'"):
            reader.report(problem)
        enabled = True
        if given.get("enabled") is not None:
            means = "true: what went wrong in a step is added to the list at state_path"
            enabled = reader.flag(given["enabled"], (*path, "enabled"), means)
        where = (*path, "include_stack_traces")
        if given.get("include_stack_traces") is not None and reader.flag(
            given["include_stack_traces"], where, "write false, or remove it"
        ):
            message = "there are no stack traces: an error says which step failed, and why"
            problem = Problem("without_effect", message, "remove it", where, on_key=True, warning=True)
            reader.report(problem)
        draft = ReactiveDraft("", path)
        keys = reader.state_path(draft, given.get("state_path") or COLLECTED_AT, (*path, "state_path"))
        handling.uses = draft.uses
        handling.errors_to = keys if enabled else ()
