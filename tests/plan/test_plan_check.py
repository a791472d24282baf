"""Plans are checked without any file: problems carry paths, and calls are followed through plans."""

from __future__ import annotations

from support.plans import Call, Do, block, bundle, plan
from workflows_mcp.plan import model
from workflows_mcp.plan.calls import called_workflows, fixed_name
from workflows_mcp.plan.checks import check_calls, check_plan
from workflows_mcp.plan.model import InputSpec


def echo(value: object) -> model.Do:
    return Do("Echo", {"value": value}, defaults={"value": None})


def test_a_plan_in_which_every_reference_leads_somewhere_has_no_problems() -> None:
    good = plan(
        block("a"),
        block(
            "b", echo(["${blocks.a.value}", {"x": "${inputs.n}"}]), ["a"], condition="${blocks.a.succeeded}"
        ),
        inputs={"n": InputSpec("integer")},
        outputs={"all": "${blocks.b.outputs.value} and ${metadata.run_id}"},
    )
    assert check_plan(good) == []


def test_problems_carry_the_path_and_the_offset_of_the_reference() -> None:
    bad = plan(
        block("a", echo({"deep": ["fine", "x ${inputs.n}"]})),
        block("b", Do("Echo", {"value": "${blocks.a.valu}"}, timeout="${blocks.c.value}"), ["a"]),
        block("c", condition="${inputs.n} =="),
        outputs={"o": {"p": "${nothing.here}"}},
    )
    found = [(problem.code, problem.path, problem.offset) for problem in check_plan(bad)]
    assert found == [
        ("syntax", ("blocks", "c", "condition"), 14),
        ("undefined", ("blocks", "a", "inputs", "value", "deep", 1), 2),
        ("undefined", ("blocks", "b", "inputs", "value"), 0),
        ("undefined", ("outputs", "o", "p"), 0),
        ("not_a_dependency", ("blocks", "b", "timeout"), 0),
    ]


def test_calls_by_a_fixed_name_are_known_before_a_run() -> None:
    main = plan(
        block("a", Call("helper")),
        block("b", Call("${inputs.which}")),
        block("c", Call("helper")),
        block("d", Call("other")),
        block("e"),
    )
    assert called_workflows(main) == ["helper", "other"]
    assert fixed_name(Call("${inputs.which}")) is None
    assert fixed_name(Do("Echo")) is None


def test_references_into_called_workflows_are_followed_at_any_depth() -> None:
    inner = plan(block("core"), name="inner", outputs={"result": "${blocks.core.value}"})
    middle = plan(block("step", Call("inner")), name="middle", outputs={"passed": "${blocks.step.result}"})

    def main(reference: str) -> list[str]:
        outer = plan(block("top", Call("middle")), name="main", outputs={"o": f"${{blocks.top.{reference}}}"})
        return [it.message for it in check_calls(bundle(outer, middle, inner)).get("main", [])]

    assert main("outputs.passed") == []
    assert main("passed") == []
    assert main("blocks.step.outputs.result") == []
    assert main("blocks.step.blocks.core.value") == []
    assert main("blocks.step.blocks.core.metadata.wave") == []
    assert "no output 'result'" in main("outputs.result")[0]
    assert "no output 'wrong'" in main("blocks.step.wrong")[0]
    assert "no block 'cor' in workflow 'inner'" in main("blocks.step.blocks.cor.value")[0]
    assert "no output 'valeu'" in main("blocks.step.blocks.core.valeu")[0]


def test_a_call_is_given_all_that_it_needs_and_nothing_else() -> None:
    helper = plan(
        block("a"),
        name="helper",
        inputs={"n": InputSpec("integer"), "s": InputSpec("string", required=False)},
    )

    def codes(inputs: object) -> list[str]:
        found = check_calls(bundle(plan(block("call", Call("helper", inputs)), name="main"), helper))
        return [problem.code for problem in found.get("main", [])]

    assert codes({"n": 1}) == []
    assert codes({"n": "1", "s": "x"}) == []
    assert codes({"n": "${inputs.x}"}) == ["undefined"]
    assert codes("${inputs}") == []
    assert codes({}) == ["missing_input"]
    assert codes({"n": "one", "t": 1}) == ["wrong_type", "unknown_input"]


def test_a_cycle_is_refused_only_if_no_call_on_it_is_guarded() -> None:
    guard = Do("Shell", may_fail=True)

    def circular(*blocks: object) -> bool:
        a = plan(*blocks, name="a")  # type: ignore[arg-type]
        b = plan(block("back", Call("a")), name="b")
        return any(it.code == "circular_call" for found in check_calls(bundle(a, b)).values() for it in found)

    assert circular(block("go", Call("b")))
    assert circular(block("first", echo(1)), block("go", Call("b"), ["first"]))
    assert not circular(block("go", Call("b"), condition="${metadata.run_id} == ''"))
    assert not circular(block("first", guard), block("go", Call("b"), ["first"]))
    assert circular(block("first", guard), block("go", Call("b"), [("first", False)]))
    assert not circular(block("first", Call("${inputs.w}")), block("go", Call("b"), ["first"]))
    assert not circular(
        block("first", guard), block("second", echo(1), ["first"]), block("go", Call("b"), ["second"])
    )
    assert circular(block("first", guard), block("go", Call("b"), ["first"]), block("too", Call("b")))
