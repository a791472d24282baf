"""Plans survive being written down, and equal meaning has an equal key in every process."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from support.plans import Call, Do, Node, Plan
from workflows_mcp.plan.codec import (
    bundle_key,
    decode_bundle,
    decode_plan,
    encode_bundle,
    encode_plan,
    plan_key,
)
from workflows_mcp.plan.model import Bundle, Expr, ForEach, Graph, InputSpec, Need
from workflows_mcp.plan.model import Do as PlainDo
from workflows_mcp.plan.model import Return as PlainReturn

PLAN = Plan(
    "deploy",
    "graph",
    Graph(
        (
            Node(
                "build",
                Do(
                    "Shell",
                    {"command": "make", "env": {"B": "1", "A": "2"}},
                    code=("command",),
                    may_fail=True,
                ),
                ("blocks", 0),
            ),
            Node("call", Call("helper", {"n": [1, 2.5, None, True, "é"]}), ("blocks", 1), (Need(0, False),)),
        )
    ),
    {"n": InputSpec("integer", "How many", required=False, default=3, has_default=True)},
    {"out": "${blocks.build.outputs.stdout}"},
    tags=("a", "b"),
    file="/somewhere/deploy.yaml",
)


def test_a_plan_and_a_bundle_come_back_as_they_were() -> None:
    assert decode_plan(encode_plan(PLAN)) == PLAN
    bundle = Bundle("deploy", {"deploy": PLAN}, {"deploy": "text"})
    assert decode_bundle(encode_bundle(bundle)) == bundle


def test_the_key_is_that_of_the_content_and_not_of_the_file() -> None:
    key = plan_key(PLAN)
    assert len(key) == 24
    assert int(key, 16) >= 0
    assert plan_key(decode_plan(encode_plan(PLAN))) == key
    assert plan_key(msgspec.structs.replace(PLAN, file="elsewhere.yaml")) == key
    assert plan_key(msgspec.structs.replace(PLAN, name="other")) != key
    assert plan_key(msgspec.structs.replace(PLAN, outputs={})) != key


def test_the_key_is_the_same_in_another_process() -> None:
    code = (
        "import sys; from workflows_mcp.plan.codec import decode_plan, plan_key; "
        "print(plan_key(decode_plan(sys.stdin.buffer.read())))"
    )
    for hash_seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=encode_plan(PLAN),
            capture_output=True,
            env={"PYTHONHASHSEED": hash_seed},
            check=True,
        )
        assert done.stdout.decode().strip() == plan_key(PLAN)


def test_the_key_of_a_bundle_covers_what_is_called_and_the_sources() -> None:
    helper = Plan("helper", "graph", Graph(()))
    bundle = Bundle("deploy", {"deploy": PLAN, "helper": helper}, {"deploy": "text"})
    key = bundle_key(bundle)
    assert bundle_key(Bundle("deploy", {"helper": helper, "deploy": PLAN}, {"deploy": "text"})) == key
    changed = msgspec.structs.replace(helper, outputs={"x": 1})
    assert bundle_key(Bundle("deploy", {"deploy": PLAN, "helper": changed}, {"deploy": "text"})) != key
    assert bundle_key(Bundle("deploy", bundle.plans, {"deploy": "# moved\ntext"})) != key


def test_a_plan_that_an_earlier_version_stored_gets_the_paths_of_its_expressions() -> None:
    stored = {
        "name": "w",
        "dialect": "stateful",
        "body": {
            "type": "sequence",
            "nodes": [
                {
                    "id": "a",
                    "do": {
                        "type": "do",
                        "step": "Shell",
                        "inputs": {"command": "ls {{ state.x }}", "env": {"A": 1}},
                        "code": ["command"],
                        "timeout": 5,
                    },
                    "at": ["steps", 0],
                    "condition": "{{ state.x }}",
                    "for_each": {"items": ["one"], "max_parallel": 2},
                },
                {"id": "b", "do": {"type": "return", "value": None}, "at": ["steps", 1]},
            ],
        },
    }
    plan = decode_plan(msgspec.msgpack.encode(stored))
    first, last = plan.body.nodes
    assert (plan.language, plan.reactive) == ("jinja", False)
    assert first.condition == Expr("{{ state.x }}", ("steps", 0, "when"), "condition")
    assert first.for_each == ForEach(
        Expr(["one"], ("steps", 0, "items")), Expr(2, ("steps", 0, "max_parallel"))
    )
    assert first.do == PlainDo(
        "Shell",
        {
            "command": Expr("ls {{ state.x }}", ("steps", 0, "command"), "code"),
            "env": Expr({"A": 1}, ("steps", 0, "env")),
        },
        timeout=Expr(5, ("steps", 0, "timeout")),
    )
    assert last.do == PlainReturn(None)
