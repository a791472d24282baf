"""A plan that is ready to run: its dependents known, its expressions compiled when they are first evaluated.

    program = program_of(plan)
    program.evaluate(node.do.timeout, names)        # the value; raises EvaluationError

All runs of a plan share one program. `evaluate` and what is built on it are the only way to the value of an
expression of a plan: they know where it is in the document, and which limits its value has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from typing import Any

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions import Code, Scope, quoted_text
from workflows_mcp.machine.changes import Key, Path
from workflows_mcp.machine.state import Fault
from workflows_mcp.plan import (
    CONTEXT_FULL,
    MOST_SECONDS,
    NO_ITEMS,
    Call,
    Change,
    Do,
    Expr,
    ForEach,
    Node,
    Plan,
    Rule,
    WrongRetry,
    at_once,
    converted,
    duration_seconds,
    language_of,
    parser_of,
    read_rule,
)
from workflows_mcp.values import Value, kind_and_value, shown, to_text

Evaluate = Callable[[Scope], Value]


class EvaluationError(Exception):
    """An expression failed. `fault` has its place in the definition; the address is that of the reader."""

    def __init__(self, error: ExpressionError, workflow: str, path: Path) -> None:
        super().__init__(str(error))
        self.fault = Fault(error.code, error.message, error.hint, "", workflow, path, error.offset)


class Program:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.language = language_of(plan)
        self.nodes = plan.body.nodes
        self.context_full = len(self.nodes) if plan.on_context_full else -1
        """The index of the steps for a full context; they are beside the sequence, which never reaches
        them."""
        if plan.on_context_full:
            at = (CONTEXT_FULL,)
            handler = Call(Expr(plan.on_context_full, at))
            self.nodes = (*self.nodes, Node(CONTEXT_FULL, handler, at, on_failure="continue"))
        self.has_push_back = plan.has_push_back
        self.ids = {node.id: index for index, node in enumerate(self.nodes)}
        self.dependents: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for need in node.needs:
                self.dependents[need.node].append(index)
        self._compiled: dict[int, tuple[Expr, Evaluate]] = {}
        self.first_state = {
            part: {name: Expr(value, ("default_state", part, name)) for name, value in fields.items()}
            for part, fields in (plan.initial_state.items() if plan.reactive else ())
        }

    def defaults(self, index: int) -> dict[str, Value]:
        node = self.nodes[index]
        if node.for_each is not None:
            return NO_ITEMS
        return node.do.defaults if isinstance(node.do, Do) else {}

    # Expressions

    def evaluate(self, expr: Expr | None, names: Scope) -> Any:
        """The value of an expression. Raises EvaluationError."""
        if expr is None:
            return None
        known = self._compiled.get(id(expr))
        if known is None:
            compiled = self._compile(expr)
            known = self._compiled[id(expr)] = expr, compiled
        return known[1](names)

    def error(self, expr: Expr, message: str, hint: str = "", inside: Path = ()) -> EvaluationError:
        """The error about the value of an expression."""
        problem = ExpressionError(message, hint=hint)
        return EvaluationError(problem, self.plan.name, (*expr.at, *inside))

    def condition(self, expr: Expr | None, names: Scope) -> bool:
        return expr is None or bool(self.evaluate(expr, names))

    def number(self, expr: Expr, names: Scope, what: str, least: float, *, whole: bool = False) -> float:
        """The number that an operation needs: seconds to wait, times to jump."""
        value = self.evaluate(expr, names)
        try:
            number: float = converted(value, "integer" if whole else "number")
        except ValueError as error:
            raise self.error(expr, f"{what} {error}") from None
        if number < least:
            raise self.error(expr, f"{what} must be {least:g} or more, not {number:g}")
        return number

    def timeout(self, expr: Expr | None, names: Scope) -> float | None:
        value = self.evaluate(expr, names)
        if expr is None or value is None:
            return None
        try:
            seconds = float(duration_seconds(value))
        except (TypeError, ValueError, OverflowError):
            seconds = 0.0
        if isinstance(value, bool) or not 0 < seconds <= MOST_SECONDS:
            message = (
                f"a timeout is a number of seconds above 0, at most {MOST_SECONDS}, not {to_text(value)!r}"
            )
            raise self.error(expr, message)
        return seconds

    def retry(self, node: Node, names: Scope) -> Rule | None:
        if node.retry is None:
            return None
        try:
            return read_rule(self.evaluate(node.retry, names))
        except WrongRetry as wrong:
            inside = () if wrong.key is None else (wrong.key,)
            raise self.error(node.retry, str(wrong), wrong.hint, inside) from None

    def items(self, each: ForEach, names: Scope) -> list[Value] | dict[str, Value]:
        items: Value = self.evaluate(each.items, names)
        if isinstance(items, list | dict):
            return items
        message = f"{each.items.at[-1]} takes a list or an object, not {kind_and_value(items)}"
        hint = "a command returns data through its outputs: {name: {type: json, path: …}}"
        raise self.error(each.items, message, hint)

    def max_parallel(self, each: ForEach, names: Scope) -> int | None:
        value = self.evaluate(each.max_parallel, names)
        if each.max_parallel is None or value is None:
            return None
        try:
            return at_once(value)
        except ValueError as error:
            raise self.error(each.max_parallel, f"'max_parallel' {error}") from None

    def inputs(self, do: Do, names: Scope) -> tuple[dict[str, Value], dict[str, Code]]:
        """The resolved inputs, and those of them that are code with their values kept apart."""
        inputs: dict[str, Value] = {}
        codes: dict[str, Code] = {}
        for name, expr in do.inputs.items():
            if expr.kind == "template":
                inputs[name] = self.evaluate(expr, names)
        for name, expr in do.inputs.items():
            if expr.kind == "literal":
                inputs[name] = expr.source
        for name, expr in do.inputs.items():
            if expr.kind == "code" and isinstance(expr.source, str):
                code = codes[name] = self.evaluate(expr, names)
                as_text = do.by == "server" or inputs.get("unsafe") == "raw"
                inputs[name] = _as_text(code) if as_text else self._for_agent(expr, code)
        return inputs, codes

    def _for_agent(self, expr: Expr, code: Code) -> str:
        """A command for an agent to run, as text in which values stay data."""
        try:
            return quoted_text(code)
        except ExpressionError as error:
            raise EvaluationError(error, self.plan.name, expr.at) from None

    def replacements(self, do: Do, names: Scope) -> dict[str, Value]:
        """The value of each template in its inputs, so that an agent sees where a value comes from."""
        pieces: Callable[[str], tuple[str, ...]] | None = getattr(self.language, "pieces", None)
        found: dict[str, Value] = {}
        if pieces is None:
            return found
        for expr in do.inputs.values():
            for text in _texts(expr.source) if expr.kind != "literal" else ():
                for piece in pieces(text) if self.language.is_dynamic(text) else ():
                    if piece not in found:
                        found[piece] = self._compile(Expr(piece, expr.at))(names)
        return found

    # Changes of the state

    def place(self, expr: Expr, names: Scope) -> Path:
        """The place in the state that an expression of kind `path` names."""
        return tuple(self._key(expr, key) for key in self.evaluate(expr, names))

    def _key(self, expr: Expr, value: Value) -> Key:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return value
        message = f"a key of the state must be a text or a number, not {kind_and_value(value)}"
        hint = f"look at what the path is made of: {'.'.join(map(str, expr.source))}"
        raise self.error(expr, message, hint)

    def new_value(self, change: Change, names: Any, result: Value, has_result: bool) -> Value:
        """The value that a change writes; `names` include the result of the step."""
        if change.value is not None:
            value = self.evaluate(change.value, names)
        elif change.operation == "increment":
            value = 1
        else:
            value = result if has_result else None
        if change.transform is None:
            return value
        more = names.with_variables({"input": value, "result": result if has_result else value})
        return self.evaluate(change.transform, more)

    # Compiling

    def _compile(self, expr: Expr) -> Evaluate:
        if expr.kind == "literal":
            return lambda names: expr.source
        if expr.kind == "path":
            keys = [self._compile(Expr(key, expr.at)) for key in expr.source]
            return lambda names: [key(names) for key in keys]
        if expr.kind in ("condition", "transform", "code"):
            return self._parsed(expr)
        return self._inside(expr) or (lambda names: expr.source)

    def _inside(self, expr: Expr) -> Evaluate | None:
        """None if there is nothing to evaluate, so that constants are shared and not rebuilt."""
        source, language = expr.source, self.language
        if isinstance(source, str):
            return self._parsed(expr) if language.is_dynamic(source) else None
        if isinstance(source, dict):
            values = [(key, self._inside(_part(expr, key)), item) for key, item in source.items()]
            if language.resolves_keys and any(map(language.is_dynamic, source)):
                return self._with_keys(values, expr)
            if not any(evaluate for _, evaluate, _ in values):
                return None
            return lambda names: {key: part(names) if part else item for key, part, item in values}
        if isinstance(source, list):
            items = [(self._inside(_part(expr, index)), item) for index, item in enumerate(source)]
            if not any(evaluate for evaluate, _ in items):
                return None
            return lambda names: [part(names) if part else item for part, item in items]
        return None

    def _with_keys(self, values: list[tuple[str, Evaluate | None, Value]], expr: Expr) -> Evaluate:
        """A mapping some of whose keys are templates."""
        keys = [self._inside(Expr(key, (*expr.at, key))) for key, _, _ in values]

        def evaluate(names: Scope) -> Value:
            found: dict[str, Value] = {}
            for (key, part, item), named in zip(values, keys, strict=True):
                name = to_text(named(names)) if named is not None else key
                if name in found:
                    message = f"the key {shown(name)} occurs twice in the mapping"
                    raise self.error(expr, message, "two templates return the same key", (key,))
                found[name] = part(names) if part else item
            return found

        return evaluate

    def _parsed(self, expr: Expr) -> Evaluate:
        def evaluate(names: Scope) -> Value:
            try:
                return expression.evaluate(names)
            except ExpressionError as error:
                raise EvaluationError(error, self.plan.name, expr.at) from None

        try:
            expression = parser_of(self.language, expr.kind)(expr.source)
        except ExpressionError as error:
            raise EvaluationError(error, self.plan.name, expr.at) from None
        return evaluate


def _part(expr: Expr, key: str | int) -> Expr:
    return Expr(expr.source[key], (*expr.at, key), expr.kind)


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


def given_by(result: Value, documented: Container[str] | None) -> tuple[dict[str, Value], dict[str, Value]]:
    """The names from the result of a step: those that are looked up before the state, and those after it.

    `documented`: the outputs of the step type; None: every field comes before the state.
    """
    fields = result if isinstance(result, dict) else {}
    first = {name: it for name, it in fields.items() if documented is None or name in documented}
    return {**first, "result": result}, {name: it for name, it in fields.items() if name not in first}


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
