"""A plan that is ready to run: its templates compiled, its dependents known.

All runs of a plan share one program. A node is compiled when it is first entered, so that a run of a large
plan starts at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions import Code, CodeTemplate, Expression, Language, Scope, quoted_text
from workflows_mcp.machine.changes import Key, Path
from workflows_mcp.plan import (
    CONTEXT_FULL,
    LAYOUTS,
    MOST_SECONDS,
    NO_ITEMS,
    Branch,
    Call,
    Change,
    ChangeOperation,
    Checkpoint,
    Do,
    Each,
    Jump,
    Layout,
    Node,
    Plan,
    Return,
    Rule,
    SetState,
    Tell,
    UpdateState,
    Wait,
    While,
    WrongRetry,
    at_once,
    config_reader,
    converted,
    language_of,
    read_rule,
)
from workflows_mcp.values import Value, kind_and_value, shown, to_text

Evaluate = Callable[[Scope], Value]


class EvaluationError(Exception):
    """An expression failed. `path` leads to it in the document.

    The path starts at the operation, or, with `workflow`, at the top of the document of that workflow."""

    def __init__(self, cause: ExpressionError, path: Path, workflow: str = "") -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.path = path
        self.workflow = workflow


class PreparedNode:
    """A node with its expressions compiled."""

    __slots__ = (
        "_changes",
        "_code",
        "_condition",
        "_error_changes",
        "_inputs",
        "_items",
        "_language",
        "_layout",
        "_literal",
        "_looped",
        "_max_parallel",
        "_number",
        "_retry",
        "_test",
        "_timeout",
        "_updates",
        "_value",
        "_workflow",
        "config",
        "node",
    )

    def __init__(self, node: Node, language: Language, layout: Layout) -> None:
        self.node = node
        self._language = language
        self._layout = layout
        self._changes: list[PreparedChange] | None = None
        self._error_changes: list[PreparedChange] | None = None
        self._looped: Evaluate = _nothing
        do = node.do
        self._condition = _expression(language.condition, node.condition, layout.condition)
        self._retry = compile_value(node.retry, language, layout.retry) if node.retry is not None else None
        self._items = self._max_parallel = None
        if (each := node.for_each) is not None:
            self._items = compile_value(each.items, language, layout.items)
            self._max_parallel = compile_value(each.max_parallel, language, layout.max_parallel)
        self._code: list[tuple[str, CodeTemplate]] = []
        self._literal: dict[str, Value] = {}
        config = do.config if isinstance(do, Do) else {}
        self.config = compile_value(config, language, (), read=config_reader(language))
        self._timeout: Evaluate = _nothing
        self._inputs: Evaluate = _nothing
        self._workflow: Evaluate = _nothing
        self._value: Evaluate = _nothing
        self._number: Evaluate = _nothing
        self._test: Callable[[Scope], Any] | None = None
        self._updates: list[tuple[str, Evaluate]] = []
        match do:
            case Do():
                self._timeout = compile_value(do.timeout, language, layout.timeout)
                apart = (*do.code, *do.literal)
                plain = {name: value for name, value in do.inputs.items() if name not in apart}
                self._inputs = compile_value(plain, language, layout.inputs)
                self._literal = {name: do.inputs[name] for name in do.literal}
                self._code = [
                    (name, language.code(do.inputs[name]))
                    for name in do.code
                    if isinstance(do.inputs[name], str)
                ]
            case Call():
                self._timeout = compile_value(do.timeout, language, layout.timeout)
                self._workflow = compile_value(do.workflow, language, layout.workflow)
                self._inputs = compile_value(do.inputs, language, layout.given)
            case Branch():
                self._test = _expression(language.condition, do.test, layout.test)
            case Jump():
                self._number = compile_value(do.most, language, layout.most)
            case SetState():
                self._updates = [
                    (name, compile_value(value, language, (*layout.updates, name)))
                    for name, value in do.updates.items()
                ]
            case Return():
                self._value = compile_value(do.value, language, layout.value)
            case Wait():
                self._number = compile_value(do.seconds, language, layout.seconds)
                self._value = compile_value(do.message, language, layout.message)
            case Tell():
                self._value = compile_value(do.message, language, layout.message)
            case Checkpoint():
                self._value = compile_value(do.parameters, language, layout.parameters)
            case While():
                self._test = _expression(language.condition, do.test, layout.test)
                self._number = compile_value(do.most, language, layout.most)
            case Each():
                self._looped = compile_value(do.items, language, layout.items)

    def condition(self, scope: Scope) -> bool:
        return True if self._condition is None else bool(self._condition(scope))

    def retry(self, scope: Scope) -> Rule | None:
        if self._retry is None:
            return None
        try:
            return read_rule(self._retry(scope))
        except WrongRetry as wrong:
            path = self._layout.retry if wrong.key is None else (*self._layout.retry, wrong.key)
            raise EvaluationError(ExpressionError(str(wrong), hint=wrong.hint), path) from None

    def items(self, scope: Scope) -> list[Value] | dict[str, Value]:
        assert self._items is not None
        items = self._items(scope)
        if isinstance(items, list | dict):
            return items
        raise EvaluationError(
            ExpressionError(
                f"{self._layout.items[-1]} takes a list or an object, not {kind_and_value(items)}",
                hint="a command returns data through its outputs: {name: {type: json, path: …}}",
            ),
            self._layout.items,
        )

    def max_parallel(self, scope: Scope) -> int | None:
        assert self._max_parallel is not None
        value = self._max_parallel(scope)
        if value is None:
            return None
        try:
            return at_once(value)
        except ValueError as error:
            problem = ExpressionError(f"'max_parallel' {error}")
            raise EvaluationError(problem, self._layout.max_parallel) from None

    def prompt(self, scope: Scope) -> str:
        """The prompt for sub-agents that replaces the standard one."""
        each = self.node.for_each
        if each is None or each.prompt is None:
            return ""
        at = ("sub_agent_prompt_override",)
        return to_text(compile_value(each.prompt, self._language, at)(scope))

    def timeout(self, scope: Scope) -> float | None:
        value = self._timeout(scope)
        if value is None:
            return None
        try:
            seconds = float(value)
        except (TypeError, ValueError, OverflowError):
            seconds = 0.0
        if isinstance(value, bool) or not 0 < seconds <= MOST_SECONDS:
            problem = ExpressionError(
                f"a timeout is a number of seconds above 0, at most {MOST_SECONDS}, not {to_text(value)!r}"
            )
            raise EvaluationError(problem, self._layout.timeout)
        return seconds

    def test(self, scope: Scope) -> bool:
        assert self._test is not None
        return bool(self._test(scope))

    def updates(self, scope: Scope) -> dict[str, Value]:
        """New values of the state; each may use those before it by their bare names."""
        found: dict[str, Value] = {}
        for name, evaluate in self._updates:
            found[name] = evaluate({**scope, **found})
        return found

    def value(self, scope: Scope) -> Value:
        return self._value(scope)

    def looped(self, scope: Scope) -> Value:
        """The items of a loop."""
        return self._looped(scope)

    @property
    def changes(self) -> list[PreparedChange]:
        """The changes of the state that the step makes, alone or with its result."""
        if self._changes is None:
            do = self.node.do
            changes = do.changes if isinstance(do, UpdateState) else self.node.changes
            self._changes = self._prepare(changes)
        return self._changes

    @property
    def error_changes(self) -> list[PreparedChange]:
        if self._error_changes is None:
            self._error_changes = self._prepare(self.node.error_changes)
        return self._error_changes

    def replacements(self, scope: Scope) -> dict[str, Value]:
        """The value of each template in its inputs, so that an agent sees where a value comes from."""
        do, language = self.node.do, self._language
        pieces: Callable[[str], tuple[str, ...]] | None = getattr(language, "pieces", None)
        if pieces is None or not isinstance(do, Do):
            return {}
        found: dict[str, Value] = {}
        for text in _texts({name: it for name, it in do.inputs.items() if name not in do.literal}):
            for piece in pieces(text) if language.is_dynamic(text) else ():
                if piece not in found:
                    found[piece] = compile_value(piece, language, self._layout.inputs)(scope)
        return found

    def fallback(self, scope: Scope) -> Value:
        """The value that replaces its result after a failure."""
        return compile_value(self.node.fallback, self._language, self._layout.fallback)(scope)

    def timeout_answer(self, scope: Scope) -> dict[str, Value]:
        """The outputs of a question that was not answered in time."""
        outputs = compile_value(self.node.timeout_answer, self._language, self._layout.on_timeout)(scope)
        return dict(outputs)

    def _prepare(self, changes: tuple[Change, ...]) -> list[PreparedChange]:
        return prepared_changes(changes, self._language)

    def number(self, scope: Scope, what: str, least: float, *, whole: bool = False) -> float:
        """The number that an operation needs: seconds to wait, times to jump."""
        value = self._number(scope)
        try:
            number: float = converted(value, "integer" if whole else "number")
        except ValueError as error:
            problem = ExpressionError(f"{what} {error}")
        else:
            if number >= least:
                return number
            problem = ExpressionError(f"{what} must be {least:g} or more, not {number:g}")
        raise EvaluationError(problem, self._layout.most if whole else self._layout.seconds)

    def workflow(self, scope: Scope) -> str:
        return to_text(self._workflow(scope))

    @property
    def _by_agent(self) -> bool:
        return isinstance(self.node.do, Do) and self.node.do.by == "agent"

    def _for_agent(self, name: str, code: Code) -> str:
        """A command for an agent to run, as text in which values stay data."""
        try:
            return quoted_text(code)
        except ExpressionError as error:
            raise EvaluationError(error, (*self._layout.inputs, name)) from None

    def inputs(self, scope: Scope) -> tuple[dict[str, Value], dict[str, Code]]:
        """The resolved inputs, and those of them that are code with their values kept apart."""
        inputs = self._inputs(scope)
        if not self._code and not self._literal:
            return inputs, {}
        inputs = {**inputs, **self._literal}
        codes: dict[str, Code] = {}
        for name, template in self._code:
            try:
                code = template.evaluate(scope)
            except ExpressionError as error:
                raise EvaluationError(error, (*self._layout.inputs, name)) from None
            codes[name] = code
            as_text = not self._by_agent or inputs.get("unsafe") == "raw"
            inputs[name] = _as_text(code) if as_text else self._for_agent(name, code)
        return inputs, codes


class Program:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.language = language_of(plan)
        self.layout = LAYOUTS[plan.dialect]
        self.nodes = plan.body.nodes
        self.context_full = len(self.nodes) if plan.on_context_full else -1
        """The index of the steps for a full context; they are beside the sequence, which never reaches
        them."""
        if plan.on_context_full:
            handler = Node(CONTEXT_FULL, Call(plan.on_context_full), (CONTEXT_FULL,), on_failure="continue")
            self.nodes = (*self.nodes, handler)
        self.ids = {node.id: index for index, node in enumerate(self.nodes)}
        self.dependents: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for need in node.needs:
                self.dependents[need.node].append(index)
        self._prepared: list[PreparedNode | None] = [None] * len(self.nodes)
        self._outputs: dict[str, Evaluate] | None = None

    def prepared(self, index: int) -> PreparedNode:
        node = self._prepared[index]
        if node is None:
            node = self._prepared[index] = PreparedNode(self.nodes[index], self.language, self.layout)
        return node

    @property
    def outputs(self) -> dict[str, Evaluate]:
        if self._outputs is None:
            self._outputs = {
                name: compile_value(value, self.language, ("outputs", name), read=self.language.output)
                for name, value in self.plan.outputs.items()
            }
        return self._outputs

    def defaults(self, index: int) -> dict[str, Value]:
        node = self.nodes[index]
        if node.for_each is not None:
            return NO_ITEMS
        return node.do.defaults if isinstance(node.do, Do) else {}


def _texts(value: Value) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _as_text(code: Code) -> str:
    """Code with its values inserted, to be shown; it is never run like this."""
    pieces = [code.texts[0]]
    for value, text in zip(code.values, code.texts[1:], strict=True):
        pieces += [to_text(value), text]
    return "".join(pieces)


def compile_value(
    value: Value,
    language: Language,
    path: Path,
    *,
    read: Callable[[str], Expression] | None = None,
) -> Evaluate:
    """A function that returns `value` with every template in it resolved; types survive."""
    if value is None:
        return _nothing
    if not value:
        return lambda _: value
    compiled = _compile(value, language, path, read or language.template)
    return compiled if compiled is not None else lambda _: value


def _nothing(_: Scope) -> Value:
    return None


def _compile(
    value: Value, language: Language, path: Path, read: Callable[[str], Expression]
) -> Evaluate | None:
    """None if there is nothing to resolve, so that constants are shared and not rebuilt."""
    if isinstance(value, str):
        return _expression(read, value, path) if language.is_dynamic(value) else None
    if isinstance(value, dict):
        pairs = [(key, _compile(item, language, (*path, key), read), item) for key, item in value.items()]
        if language.resolves_keys and any(map(language.is_dynamic, value)):
            return _with_keys(pairs, language, path)
        if not any(part for _, part, _ in pairs):
            return None
        return lambda scope: {key: part(scope) if part else item for key, part, item in pairs}
    if isinstance(value, list):
        items = [_compile(item, language, (*path, index), read) for index, item in enumerate(value)]
        if not any(items):
            return None
        both = list(zip(items, value, strict=True))
        return lambda scope: [part(scope) if part else item for part, item in both]
    return None


def _with_keys(pairs: list[tuple[str, Evaluate | None, Value]], language: Language, path: Path) -> Evaluate:
    """A mapping some of whose keys are templates."""
    keys = [_compile(key, language, (*path, key), language.template) for key, _, _ in pairs]

    def evaluate(scope: Scope) -> Value:
        found: dict[str, Value] = {}
        for (key, part, item), named in zip(pairs, keys, strict=True):
            name = to_text(named(scope)) if named is not None else key
            if name in found:
                problem = ExpressionError(
                    f"the key {shown(name)} occurs twice in the mapping",
                    hint="two templates return the same key",
                )
                raise EvaluationError(problem, (*path, key))
            found[name] = part(scope) if part else item
        return found

    return evaluate


def _expression(
    read: Callable[[str], Expression], source: str | None, path: Path
) -> Callable[[Scope], Any] | None:
    if source is None:
        return None
    expression = read(source)

    def evaluate(scope: Scope) -> Value:
        try:
            return expression.evaluate(scope)
        except ExpressionError as error:
            raise EvaluationError(error, path) from None

    return evaluate


_CACHE: OrderedDict[int, Program] = OrderedDict()
_CACHED = 128


def program_of(plan: Plan) -> Program:
    """The program of a plan. Plans are frozen, so identity is enough to recognise one."""
    program = _CACHE.get(id(plan))
    if program is None or program.plan is not plan:
        program = Program(plan)
        _CACHE[id(plan)] = program
        if len(_CACHE) > _CACHED:
            _CACHE.popitem(last=False)
    else:
        _CACHE.move_to_end(id(plan))
    return program


# Changes of the state, with their templates compiled


class PreparedChange:
    __slots__ = ("_keys", "_language", "_value", "change")

    def __init__(self, change: Change, language: Any) -> None:
        self.change = change
        self._language = language
        where = (*change.at, "path")
        self._keys: list[Evaluate] = [compile_value(key, language, where) for key in change.path]
        self._value = compile_value(change.value, language, (*change.at, "value"))

    @property
    def operation(self) -> ChangeOperation:
        return self.change.operation

    def place(self, names: Any) -> Path:
        """Where the value goes."""
        return tuple(self._key(evaluate(names)) for evaluate in self._keys)

    def _key(self, value: Value) -> Key:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return value
        problem = ExpressionError(
            f"a key of the state must be a text or a number, not {kind_and_value(value)}",
            hint=f"look at what the path is made of: {_written(self.change.path)}",
        )
        raise EvaluationError(problem, (*self.change.at, "path"))

    def value(self, names: Any, result: Value, has_result: bool) -> Value:
        """The value; `names` include the result of the step."""
        change = self.change
        if change.has_value:
            value = self._value(names)
        elif change.operation == "increment":
            value = 1
        else:
            value = result if has_result else None
        if not change.transform:
            return value
        more = names.with_variables({"input": value, "result": result if has_result else value})
        try:
            if self._language.is_dynamic(change.transform):
                return self._language.template(change.transform).evaluate(more)
            return self._language.transform(change.transform).evaluate(more)
        except ExpressionError as error:
            raise EvaluationError(error, (*change.at, "transform")) from None


def prepared_changes(changes: Iterable[Change], language: Any) -> list[PreparedChange]:
    return [PreparedChange(change, language) for change in changes]


def given_by(result: Value, documented: Container[str] | None) -> tuple[dict[str, Value], dict[str, Value]]:
    """The names from the result of a step: those that are looked up before the state, and those after it.

    `documented`: the outputs of the step type; None: every field comes before the state.
    """
    fields = result if isinstance(result, dict) else {}
    first = {name: it for name, it in fields.items() if documented is None or name in documented}
    return {**first, "result": result}, {name: it for name, it in fields.items() if name not in first}


def _written(path: tuple[Value, ...]) -> str:
    return ".".join(map(str, path))
