"""Workflows that call each other wrongly: every mistake with its place, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflows_mcp.dialects import Definition, check_bundle, load
from workflows_mcp.errors import DefinitionError, Problem
from workflows_mcp.plan.model import Bundle
from workflows_mcp.steps.registry import default_registry

CASES = Path(__file__).parent / "broken_calls"


def definitions(case: str) -> dict[str, Definition]:
    found = {}
    for path in sorted((CASES / case).glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        definition = load(text, file=path.name, registry=default_registry())
        found[definition.plan.name] = definition
    return found


def problems_of(found: dict[str, Definition]) -> list[Problem]:
    bundle = Bundle("main", {name: definition.plan for name, definition in found.items()})
    sources = {name: definition.text for name, definition in found.items()}
    with pytest.raises(DefinitionError) as caught:
        check_bundle(bundle, sources, known=["unrelated"])
    for problem in caught.value.problems:
        assert problem.place is not None
        assert problem.place.text in sources[Path(problem.place.file).stem]
        assert problem.place.text
        assert problem.hint
    return caught.value.problems


def summary(problems: list[Problem]) -> list[tuple[str, str]]:
    return [(problem.code, str(problem.place)) for problem in problems]


@pytest.mark.rows("G16")
def test_an_unguarded_circle_of_calls_is_refused_with_its_path() -> None:
    [problem] = problems_of(definitions("circular"))
    assert (problem.code, str(problem.place)) == ("circular_call", "main.yaml:9:17")
    assert "main → middle → last → main" in problem.message
    assert "condition" in problem.hint


@pytest.mark.rows("G16")
def test_a_block_whose_failure_is_ignored_guards_nothing() -> None:
    [problem] = problems_of(definitions("unguarded_self"))
    assert (problem.code, str(problem.place)) == ("circular_call", "main.yaml:8:24")
    assert "main → main" in problem.message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    depends_on: [prepare]", "    depends_on: [prepare]\n    condition: ${metadata.run_id} != ''"),
        (
            "type: RenderTemplate\n    inputs: {template: ready}",
            "type: Shell\n    inputs: {command: test -e x}",
        ),
        ("{template: ready}", "{template: ready}\n    condition: ${metadata.run_id} != ''"),
    ],
    ids=["a condition on the call", "a command before it that may fail", "a condition before it"],
)
def test_recursion_that_something_can_end_is_allowed(before: str, after: str) -> None:
    found = definitions("circular")
    text = found["main"].text
    assert before in text
    found["main"] = load(text.replace(before, after), file="main.yaml", registry=default_registry())
    bundle = Bundle("main", {name: definition.plan for name, definition in found.items()})
    check_bundle(bundle, {name: definition.text for name, definition in found.items()})


@pytest.mark.rows("G24")
def test_an_unknown_workflow_is_named_with_its_nearest_spelling_and_all_there_are() -> None:
    [problem] = problems_of(definitions("unknown_workflow"))
    assert (problem.code, str(problem.place)) == ("unknown_workflow", "main.yaml:8:17")
    assert "there is no workflow 'helpr'" in problem.message
    assert "did you mean 'helper'?" in problem.hint
    assert "unrelated" in problem.hint


@pytest.mark.rows("G16", "G24")
def test_what_a_called_workflow_takes_and_gives_is_checked_where_it_is_called() -> None:
    problems = problems_of(definitions("wrong_inputs"))
    assert summary(problems) == [
        ("missing_input", "main.yaml:6:7"),
        ("wrong_type", "main.yaml:12:16"),
        ("unknown_input", "main.yaml:13:9"),
        ("unknown_input", "main.yaml:14:9"),
        ("undefined", "main.yaml:21:12"),
        ("undefined", "main.yaml:22:12"),
        ("undefined", "main.yaml:23:12"),
    ]
    bare, count, misspelt, extra, output, shortcut, inner = problems
    assert "'name' (string), 'count' (integer)" in bare.message
    assert "note (string, default" in bare.hint
    assert 'must be a whole number, e.g. 42, not text "plenty"' in count.message
    assert "no input 'nmae'" in misspelt.message
    assert "did you mean 'name'?" in misspelt.hint
    assert "it takes: count, name, note" in extra.hint
    assert "did you mean 'result'?" in output.hint
    assert "no output 'total'" in shortcut.message
    assert "no block 'wrk' in workflow 'helper'" in inner.message
    assert "did you mean 'work'?" in inner.hint
