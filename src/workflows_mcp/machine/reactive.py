"""A reactive workflow under way: a sequence whose steps change a state with computed fields.

It adds to a sequence: loops; the changes that the result of a step makes; what follows a failed step (a
fallback, an entry in a list of errors, another attempt of the whole workflow, steps for that case); and
detached items, which run while the steps continue. The first state of a workflow and its items come last.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import Any

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW
from workflows_mcp.expressions import MISSING, Code
from workflows_mcp.limits import Limits
from workflows_mcp.machine.changes import Path, WrongChange, changed, value_at
from workflows_mcp.machine.core import Core, Purpose
from workflows_mcp.machine.items import OpenItems
from workflows_mcp.machine.lifecycle import advance
from workflows_mcp.machine.names import Names, iso, rejection_in
from workflows_mcp.machine.program import EvaluationError, Program, given_by, program_of
from workflows_mcp.machine.reactive_state import Changes, ReactiveState
from workflows_mcp.machine.rules import ScopeResult, failed, handler_of
from workflows_mcp.machine.sequence import OpenSequence, ends_with, result_of
from workflows_mcp.machine.state import TERMINAL, Fault, Record, Scope
from workflows_mcp.plan import (
    Call,
    Change,
    Do,
    Each,
    Node,
    Plan,
    Return,
    fixed_name,
    keys_of,
    names_of_items,
)
from workflows_mcp.values import Value, to_text


class OpenReactive(OpenSequence):
    __slots__ = ("limits", "next_state", "run_id", "seed")

    reactive: ReactiveState

    def __init__(
        self,
        prefix: str,
        scope: Scope,
        program: Program,
        names: dict[str, Any],
        depth: int,
        attempt_prefix: str,
        reactive: ReactiveState,
        run_id: str,
        seed: Callable[[], str],
    ) -> None:
        super().__init__(prefix, scope, program, names, depth, attempt_prefix)
        self.reactive = reactive
        self.run_id = run_id
        self.seed = seed
        """The seed of random values, now."""
        self.limits: Limits = reactive.limits
        self.next_state: dict[str, Value] | None = None
        """The first state of the next attempt of the workflow, once a step has failed."""

    # What expressions see

    def names_for(self, index: int) -> Names:
        node = self.program.nodes[index]
        record = self.scope.records.get(node.id)
        begun = record.started_at if record is not None else None
        attempt = self.attempt(node.id, record or Record())
        hidden = {
            "__now__": self.time if begun is None else begun,
            "__seed__": f"{self.seed()}/{self.prefix}{node.id}#{attempt}",
            "__limits__": self.limits,
            "__run__": self.run_id,
        }
        known, variables = self.program.plan.known, self._variables(node)
        return Names(self.reactive, self.scope.inputs, variables, hidden, self._included, known)

    def names_with_result(self, index: int, result: Value) -> Names:
        return self.names_for(index).with_variables({"result": result})

    def _variables(self, node: Node) -> dict[str, Value]:
        variables = dict(self.scope.variables)
        if self.program.has_push_back:
            variables["rejection"] = rejection_in(self.scope)
        for head in node.loops:
            do, loop = self.program.nodes[head].do, self.scope.loops.get(self.program.nodes[head].id)
            if loop is None:
                continue
            about: dict[str, Value] = {"index": loop.count - 1, "iteration": loop.count}
            if isinstance(do, Each) and loop.items is not None:
                total, item = len(loop.items), loop.items[loop.count - 1]
                variables |= {do.item: item, do.index: loop.count - 1}
                about |= {"item": item, "total": total}
                about |= {"is_first": loop.count == 1, "is_last": loop.count == total}
            variables["loop"] = about
        if self.scope.failure is not None:
            variables["error"] = _as_error(self.scope.failure)
        return variables

    def _included(self) -> list[dict[str, Value]]:
        left: list[dict[str, Value]] = []
        for node in reversed(self.program.plan.body.nodes):
            record = self.scope.records.get(node.id)
            if isinstance(node.do, Call) and node.for_each is None and record is not None:
                result = record.outputs.get("result", record.outputs)
                if record.status == "completed" and isinstance(result, dict):
                    left.append(result)
        return left

    def outcome(self, machine: Core) -> ScopeResult:
        """The value that it returned, or its state, for its caller."""
        fault, result = self._failure(), self.scope.result
        machine.stop_everything_in(self, machine.state.changed_at)
        outputs: dict[str, Value] = {"result": result}
        if result is not None or not self.prefix or "#" in self.scope.workflow:
            return ScopeResult(outputs, fault)

        def evaluate() -> None:
            outputs["result"] = self.reactive.flat()

        caller, index = machine.locate(self.prefix[:-1])
        first = self.prefix + self.program.nodes[0].id
        wrong = machine.guarded_at(caller.attempt_key(index) + Purpose.RETURN_STATE, evaluate, first)
        return ScopeResult(outputs, fault or wrong)

    # Which step follows

    def after(self, index: int) -> list[int]:
        node = self.program.nodes[index]
        record = self.scope.records[node.id]
        if index == self.program.context_full:
            return self._at_end() if self.scope.at_end else []  # it runs beside the steps
        if record.status != "completed":
            self.scope.loops.pop(node.id, None)
        if _is_detached(node, record):
            if self.scope.at_end:
                return self._at_end()
            return []  # the next step began with the items
        if ends_with(self.program.plan, node, record):
            return self._failed(node, record)
        return self.continue_after(index)

    def after_detached_failure(self, machine: Core) -> list[int]:
        """The step that follows at the end of the workflow, because detached items have failed."""
        for index, node in enumerate(self.program.nodes):
            record = self.scope.records.get(node.id) or Record()
            if _is_detached(node, record) and ends_with(self.program.plan, node, record):
                self._guarded(machine, index, self._prepare_restart, Purpose.RESTART_WORKFLOW)
                self.finished = False
                return self._failed(node, record)
        return []

    def continue_after(self, index: int) -> list[int]:
        """The step after one that has ended, or whose items are detached."""
        node = self.program.nodes[index]
        record = self.scope.records[node.id]
        if isinstance(node.do, Return) and record.status == "completed" and self.program.plan.semantics >= 3:
            self.finished = True  # what is under way ends with it
            return []
        chosen = self._next_index(index, node, record)
        section = self.program.plan.on_failure
        if chosen >= len(self.program.plan.body.nodes) or (chosen == section and self.scope.failure is None):
            return self._at_end()
        self._reach(self.program.nodes[chosen].id)
        return [chosen]

    def _at_end(self) -> list[int]:
        self.scope.at_end = any(
            (node.for_each is not None or index == self.program.context_full)
            and (record := self.scope.records.get(node.id)) is not None
            and record.status not in TERMINAL
            for index, node in enumerate(self.program.nodes)
        )
        self.finished = not self.scope.at_end
        return []

    def on_context_full(self) -> list[int]:
        """The step that handles a full context, if there is one."""
        index = self.program.context_full
        if index >= 0:
            self._reach(self.program.nodes[index].id)
        return [index] if index >= 0 else []

    def _failed(self, node: Node, record: Record) -> list[int]:
        if self.next_state is not None:
            self._restart(self.next_state)
            return [0]
        if self.can_clean_up:
            return self.clean_up(self.failure_of(node, record))
        self.finished = True
        return []

    @property
    def cleans_up(self) -> bool:  # type: ignore[override]
        """Whether the steps for its failure are under way."""
        return self.program.plan.semantics > 1 and self.scope.failure is not None

    @property
    def can_clean_up(self) -> bool:  # type: ignore[override]
        """Whether it has steps for its failure that have not started."""
        return self.program.plan.on_failure >= 0 and self.scope.failure is None

    def clean_up(self, fault: Fault) -> list[int]:
        """The first of the steps for its failure."""
        plan, scope = self.program.plan, self.scope
        scope.failure, scope.at_end = fault, False
        scope.loops.clear()
        self._reach(self.program.nodes[plan.on_failure].id)
        return [plan.on_failure]

    def _prepare_restart(self, machine: Core, index: int, node: Node, record: Record) -> None:
        """After a failed step: if the whole workflow gets another attempt, evaluate its first state."""
        plan, scope = self.program.plan, self.scope
        if scope.failure is not None or scope.tries >= plan.tries or not ends_with(plan, node, record):
            return
        seed = f"{self.seed()}/{self.prefix}"
        if plan.semantics > 1:
            seed += f"{scope.tries + 1}/"
        next_state = initial_state(
            self.program, scope.inputs, self.time, seed, self.limits, scope.variables, self.run_id
        )
        machine.stop_everything_in(self, self.time)
        self.next_state = next_state

    def _restart(self, state: dict[str, Value]) -> None:
        """Restart the whole workflow from this state; only its list of errors is kept."""
        plan, scope = self.program.plan, self.scope
        self.next_state = None
        scope.tries += 1
        for name in list(scope.records):
            self._reach(name)
        scope.records.clear()
        scope.loops.clear()
        if self.reactive.scope is scope:
            where: Path = tuple(plan.errors_to)
            errors = value_at(scope.state, where) if where else MISSING
            self.reactive.reset(state)
            if errors is not MISSING:
                with suppress(WrongChange):  # there may be no place for them in the first state
                    self.reactive.reset(self.reactive.tried([(where, "set", errors)])[0])

    def keys_of_items(
        self, index: int, items: list[Value] | dict[str, Value], plans: Mapping[str, Plan]
    ) -> list[str | int]:
        """The ids of tasks: from the task, or the `id` of the item, or its position."""
        if isinstance(items, dict):
            return keys_of(items)
        node = self.program.nodes[index]
        name = fixed_name(node.do)
        title = (name.partition("#")[2] or name) if name else node.id
        called = program_of(plans[name]) if name is not None and name in plans else None
        template = called.plan.given.get("task_id") if called is not None else None
        names = self.names_for(index)
        ids: list[str | int] = []
        for position, item in enumerate(items):
            known = names.with_variables({"item": item, "index": position, "total": len(items)})
            found = called.evaluate(template, known) if called is not None else None
            if found is None and isinstance(item, dict):
                found = item.get("id")
            text = to_text(found) if isinstance(found, str | int) and not isinstance(found, bool) else ""
            ids.append(text if text and text not in ids else f"{title}.item{position}")
        return ids

    def continue_beside(self, index: int) -> list[int]:
        return self.continue_after(index)

    # Results

    def handle_end(self, machine: Core, index: int) -> None:
        """Write the result of a step to the state, or handle its failure."""
        if index == self.program.context_full:
            machine.park(self.time)
            return
        node = self.program.nodes[index]
        record = self.scope.records[node.id]
        if failed(record) and node.fallback is not None:
            self._guarded(machine, index, self._fall_back, Purpose.FALL_BACK)
        if record.status == "completed" and (not failed(record) or self._tolerates_items(node, record)):
            self._guarded(machine, index, self._keep, Purpose.WRITE_RESULT)
        if failed(record):
            self._guarded(machine, index, self._note_failure, Purpose.WRITE_FAILURE)
            if not _is_detached(node, record):
                self._guarded(machine, index, self._prepare_restart, Purpose.RESTART_WORKFLOW)

    def _tolerates_items(self, node: Node, record: Record) -> bool:
        """Whether it has a result although some of its items have failed."""
        if node.for_each is None:
            return False
        return _tolerates_failures(node) or handler_of(self.program.plan, node, record) is not None

    def _fall_back(self, machine: Core, index: int, node: Node, record: Record) -> None:
        assert node.fallback is not None
        value = node.fallback.source
        if self.program.plan.semantics > 1:
            value = self.program.evaluate(node.fallback, self.names_for(index))
        advance(record, "fell_back")
        record.outcome, record.fault = "success", None
        record.outputs = {"result": value}

    def _guarded(self, machine: Core, index: int, do: Any, purpose: Purpose) -> None:
        node = self.program.nodes[index]
        record = self.scope.records[node.id]
        try:
            fault = machine.guarded(self, index, lambda: do(machine, index, node, record), purpose)
        except WrongChange as wrong:
            path = node.changes[0].path.at[:-1] if node.changes else ()
            fault = machine.fault(self, index, "state_update", str(wrong), wrong.hint, path)
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            message = f"its result cannot be used: {type(error).__name__}: {error}"
            fault = machine.fault(self, index, "internal", message)
        if fault is not None:
            advance(record, "rejected")
            record.outcome, record.message, record.fault = "n/a", fault.message, fault

    def _keep(self, machine: Core, index: int, node: Node, record: Record) -> None:
        if node.for_each is not None and node.for_each.errors_to:
            self._collect_errors(index, node, record)
        if not node.changes or record.written_by_agent:
            return
        result = self._result(node, record, machine.plans)
        self.reactive.change(self._changes_by(index, record, result))

    def _changes_by(self, index: int, record: Record, result: Value) -> Changes:
        """The changes of the state that the result of a step makes."""
        do, semantics = self.program.nodes[index].do, self.program.plan.semantics
        documented: Container[str] | None = do.documented if isinstance(do, Do) else ()
        names = self.names_for(index).with_given(*given_by(result, documented if semantics >= 3 else None))
        return [
            (
                self._place(record, number, change, names),
                change.operation,
                self.program.new_value(change, names, result, True),
            )
            for number, change in enumerate(self.program.nodes[index].changes)
        ]

    def keep_for_later(self, index: int, record: Record, code: dict[str, Code]) -> None:
        """Store what a step has read from the state when it starts."""
        node = self.program.nodes[index]
        if isinstance(node.do, Do) and node.do.by == "agent":
            names = self.names_for(index)
            record.places = [self._known_place(change, names) for change in node.changes]
            record.replaced = self.program.replacements(node.do, names)
        record.code = {name: (list(it.texts), list(it.values)) for name, it in code.items()}

    def _known_place(self, change: Change, names: Names) -> list[str | int] | None:
        try:
            return list(self.program.place(change.path, names))
        except EvaluationError as error:
            if error.fault.code in (TOO_SLOW, TOO_LARGE):
                raise
            return None  # it depends on the result

    def _place(self, record: Record, number: int, change: Change, names: Names) -> Path:
        known = record.places[number] if number < len(record.places) else None
        return self.program.place(change.path, names) if known is None else tuple(known)

    def _note_failure(self, machine: Core, index: int, node: Node, record: Record) -> None:
        fault = self.failure_of(node, record)
        about = _as_error(fault)
        if node.for_each is not None and node.for_each.errors_to and not _tolerates_failures(node):
            self._collect_errors(index, node, record)
        if node.error_changes:
            names = self.names_for(index).with_variables({"error": about})
            program = self.program
            self.reactive.change(
                [
                    (program.place(it.path, names), it.operation, program.new_value(it, names, about, True))
                    for it in node.error_changes
                ]
            )
        where: Path = tuple(self.program.plan.errors_to or self.reactive.plan.errors_to)
        if where:
            noted = {**about, "timestamp": iso(record.completed_at), "attempts": record.attempts}
            self.reactive.change([(where, "append", noted)])

    def _collect_errors(self, index: int, node: Node, record: Record) -> None:
        assert node.for_each is not None
        where: Path = tuple(self.program.evaluate(node.for_each.errors_to, self.names_for(index)))
        errors = [it for it in self._result(node, record, {}) if "error" in it]
        if errors:
            self.reactive.change([(where, "append", error) for error in errors])

    def _result(self, node: Node, record: Record, plans: Any) -> Value:
        items = record.scope
        if items is None or items.each is None:
            if "result" in record.outputs and not (isinstance(node.do, Call)):
                return record.outputs["result"]
            return result_of(node, record, plans)
        listed: list[Value] = []
        for key, name in zip(items.each, names_of_items(items.each, items.named), strict=True):
            item = items.records.get(name) or Record()
            entry: dict[str, Value] = {"task_id": key, "status": "failed" if failed(item) else item.status}
            if failed(item):
                entry["error"] = item.message or "it failed"
                entry["type"] = item.fault.code if item.fault is not None else "step_failed"
            elif (given := item.outputs.get("result")) is not None:
                entry["result"] = given
            listed.append(entry)
        return listed

    def does_not_fit(self, index: int, outputs: dict[str, Value], limits: Limits) -> WrongChange | None:
        """Why the result of an agent cannot be written to the state, if it cannot."""
        node = self.program.nodes[index]
        record = self.scope.records.get(node.id)
        if record is None or any(it.value or it.transform for it in node.changes):
            return None  # expressions may be slow: their problems are found later
        try:
            self.reactive.tried(self._changes_by(index, record, outputs.get("result", outputs)))
        except WrongChange as wrong:
            return wrong
        except EvaluationError:
            return None  # the fault of the author, not of the agent: the step fails
        return None


def _tolerates_failures(node: Node) -> bool:
    """Whether the block has a result although some of its items fail."""
    each = node.for_each
    return each is not None and (each.tolerate_failures or node.on_failure == "continue")


def _is_detached(node: Node, record: Record) -> bool:
    """Whether its items run, or ran, while the steps continue."""
    if node.for_each is None or node.for_each.wait:
        return False
    return record.scope is not None and bool(record.scope.each)


def _as_error(fault: Fault) -> dict[str, Value]:
    return {"message": fault.message, "type": fault.code, "step": fault.address}


def initial_state(
    program: Program,
    inputs: dict[str, Value],
    at: float,
    seed: str,
    limits: Limits,
    variables: dict[str, Value] | None = None,
    run_id: str = "",
) -> dict[str, Value]:
    """The first state of a workflow: its defaults, over them its inputs, and empty lists of errors.

    `variables` are what a task sees of its item.
    """
    plan: Plan = program.plan
    scope = Scope(plan.name, inputs, at, state={"raw": {}, "state": {}})
    hidden = {"__now__": at, "__seed__": f"{seed}default_state", "__limits__": limits, "__run__": run_id}
    names = Names(ReactiveState(scope, program, limits), inputs, variables or {}, hidden, list, plan.known)
    state: dict[str, Value] = {"raw": {}, "state": {}}
    for part, fields in program.first_state.items():
        for name, expr in fields.items():
            state[part] = {**state[part], name: program.evaluate(expr, names)}
            scope.state = state
    given_inputs = {name: value for name, value in inputs.items() if value is not None}
    state = {**state, "raw": {**state["raw"], **given_inputs}}
    for path in _error_lists(program) if plan.semantics >= 3 else ():
        if value_at(state, path) is MISSING:
            with suppress(WrongChange):  # another value may be in the way
                state, _ = changed(state, path, "set", [])
    return state


def _error_lists(program: Program) -> list[Path]:
    """The paths in the state where errors are collected, except those with templates."""
    plan = program.plan
    sharing = [plan, *(task for task in plan.tasks if task.shares_state)]
    found: list[Sequence[Any]] = [it.errors_to for it in sharing]
    for it in sharing:
        eaches = [node.for_each for node in it.body.nodes if node.for_each is not None]
        found += [each.errors_to.source for each in eaches if each.errors_to is not None]
    dynamic = program.language.is_dynamic
    return [tuple(path) for path in found if path and not any(dynamic(str(key)) for key in path)]


# Items, and the end of a workflow


def task_variables(run_id: str, workflow: str, items: OpenItems, index: int, plan: Plan) -> dict[str, Value]:
    """What a task sees beside the state: the fields of its item, and the workflow around it."""
    variables = items.variables(index)
    item = variables["item"]
    context: dict[str, Value] = dict(item) if isinstance(item, dict) else {}
    keys = items.scope.each or []
    context |= {
        "item": item,
        "index": index,
        "total": variables["total"],
        "workflow_id": run_id,
        "task_id": keys[index],
    }
    parent = {"workflow": {"id": run_id, "name": workflow}}
    known = {**variables, **context, "context": context, "parent": parent}
    names = items.names_for(index).with_variables(known)
    for name, expr in plan.given.items():
        known[name] = program_of(plan).evaluate(expr, names)
    return known
