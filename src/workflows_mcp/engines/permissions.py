"""Checks which steps the policy permits: before a run starts, and when a step is performed.

    check_bundle(bundle, registry, policy)      # raises Forbidden and names every forbidden block
    PermittedSteps(registry, policy)            # a registry that asks no agent to perform a forbidden step

A step type declares its level and the capabilities that it needs; `policy` says what is allowed. The second
check is needed because a call may choose its workflow while the run is under way, and because a server with
other settings may have started the run.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from pydantic import ConfigDict

from workflows_mcp.errors import Forbidden
from workflows_mcp.plan import Bundle, Call, Do
from workflows_mcp.policy import Denial, Policy
from workflows_mcp.steps import Question, Step, StepInputs, StepOutputs, StepRegistry, StepResult
from workflows_mcp.values import Value

CALL = "ExecuteWorkflow"
"""The step type that declares the level of a call."""


class ForbiddenBlock(NamedTuple):
    workflow: str
    block: str
    step: str
    denials: list[Denial]

    def __str__(self) -> str:
        reasons = "; ".join(str(denial) for denial in self.denials)
        return f"block '{self.block}' of workflow '{self.workflow}' ({self.step}): {reasons}"


def denials(step: Step, policy: Policy) -> list[Denial]:
    """Every reason why the policy forbids the step."""
    return policy.denials(step.level, step.capabilities)


def check_step(step: Step, policy: Policy) -> None:
    """Raises Forbidden if the policy forbids the step."""
    found = denials(step, policy)
    if found:
        reasons = "; ".join(str(denial) for denial in found)
        raise Forbidden(f"a {step.name} step may not run: {reasons}", hint=_remedies(found))


def forbidden_blocks(bundle: Bundle, registry: StepRegistry, policy: Policy) -> list[ForbiddenBlock]:
    """The forbidden blocks of a workflow, and of those that it calls by a fixed name."""
    found = []
    for name, plan in sorted(bundle.every_plan.items(), key=lambda item: item[0] != bundle.main):
        for node in plan.body.nodes:
            if not isinstance(node.do, Do | Call):
                continue
            step = registry.known(CALL if isinstance(node.do, Call) else node.do.step)
            denied = denials(step, policy) if step is not None else []
            if step is not None and denied:
                found.append(ForbiddenBlock(name, node.id, step.name, denied))
    return found


def check_bundle(bundle: Bundle, registry: StepRegistry, policy: Policy) -> None:
    """Raises Forbidden if blocks are forbidden, and names all of them."""
    found = forbidden_blocks(bundle, registry, policy)
    if found:
        count = f"{len(found)} blocks" if len(found) > 1 else "a block"
        raise Forbidden(
            f"the workflow '{bundle.main}' is not started: {count} may not run here: "
            + "; ".join(
                f"{number}. {block}" if len(found) > 1 else str(block)
                for number, block in enumerate(found, 1)
            ),
            hint=_remedies([denial for block in found for denial in block.denials]),
        )


def _remedies(found: list[Denial]) -> str:
    return "; ".join(dict.fromkeys(denial.remedy for denial in found))


class PermittedSteps(StepRegistry):
    """A registry in which a forbidden step asks its agent for nothing but a confirmation."""

    def __init__(self, registry: StepRegistry, policy: Policy) -> None:
        super().__init__()
        self._found, self._steps = registry._found, registry._steps
        self._policy = policy

    def known(self, name: str) -> Step | None:
        step = super().known(name)
        denied = denials(step, self._policy) if step is not None and step.can_ask else []
        return _NotPermitted(step, denied) if step is not None and denied else step


class _AnyInputs(StepInputs):
    model_config = ConfigDict(extra="allow")


class _NotPermitted(Step):
    """Replaces a forbidden step of an agent; its only answer lets the step fail."""

    performer = "agent"
    Inputs: ClassVar[type[StepInputs]] = _AnyInputs
    Outputs: ClassVar[type[StepOutputs]] = StepOutputs

    def __init__(self, step: Step, denied: list[Denial]) -> None:
        self.name, self.aliases = step.name, step.aliases  # type: ignore[misc]
        self.dialect_names = step.dialect_names  # type: ignore[misc]
        self._step = step
        self._reasons = "; ".join(str(denial) for denial in denied)
        self._remedies = _remedies(denied)

    def ask(self, inputs: Any) -> Question:
        return Question(
            type="forbidden",
            instructions=f"A {self.name} step may not run here ({self._reasons}), so it is not assigned. "
            f"Tell the user: {self._remedies}. Submit {{}} to continue the run with this step as failed, or "
            "cancel the run.",
            parameters={},
            result_schema={"type": "object", "additionalProperties": False},
        )

    def parse_result(self, inputs: Any, result: dict[str, Value]) -> StepResult:
        outputs = self._step.output_defaults({})
        return StepResult(outputs, ok=False, message=f"it may not run here: {self._reasons}")
