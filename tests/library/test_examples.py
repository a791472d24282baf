"""The examples do what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.rows("G22")


def test_hello(outputs: Any) -> None:
    assert outputs("example-hello", {"who": "{{ 1 + 1 }} $(id)"}) == {"greeting": "Hello, {{ 1 + 1 }} $(id)!"}


def test_parallel(workspace: Path, outputs: Any) -> None:
    (workspace / "it's").mkdir()
    (workspace / "it's" / "a file").write_text("x")
    assert outputs("example-parallel", {"directory": "it's"})["report"].startswith("1 files, ")


@pytest.mark.parametrize(
    ("inputs", "plan", "outside"),
    [
        ({}, "Take a walk, it has 21 degrees.", True),
        ({"temperature": 3}, "Stay in and read.", False),
        ({"raining": True}, "Stay in and read, it rains.", False),
    ],
)
def test_conditional(outputs: Any, inputs: dict[str, Any], plan: str, outside: bool) -> None:
    assert outputs("example-conditional", inputs) == {"plan": plan, "outside": outside, "skipped": True}


def test_composition(outputs: Any) -> None:
    assert outputs("example-composition", {"second": "you"}) == {
        "greetings": "Hello, Ada! Hello, you!",
        "length_of_the_first": 11,
    }


def test_approval(outputs: Any) -> None:
    assert outputs("example-approval", answers=("yes",)) == {
        "approved": True,
        "result": "Done: tidy up the garden.",
    }
    assert outputs("example-approval", answers=("no",)) == {"approved": False, "result": ""}


def test_questionnaire(workspace: Path, run: Any, outputs: Any) -> None:
    asked = run("example-questionnaire")
    assert [asked["action"]["step_id"], *(action["step_id"] for action in asked["more_actions"])] == [
        "goal",
        "deadline",
    ]
    said = (("deadline", "Friday"), ("goal", "fly"), "gravity")
    answers = {"goal": "fly", "deadline": "Friday", "risk": "gravity"}
    assert outputs("example-questionnaire", answers=said) == {"answers": answers, "saved_to": ""}
    found = outputs("example-questionnaire", {"topic": "it", "save_to": "my/answers.json"}, answers=said)
    assert found["saved_to"] == str(workspace / "my" / "answers.json")
    assert json.loads((workspace / "my" / "answers.json").read_text()) == {"topic": "it", **answers}


def test_recursion(outputs: Any, refusal: Any) -> None:
    assert outputs("example-recursion") == {"said": "3 2 1 lift-off!"}
    assert outputs("example-recursion", {"count": 0}) == {"said": "lift-off!"}
    assert outputs("example-recursion", {"count": 40})["said"].startswith("40 39 38 ")
    assert "WORKFLOWS_LIMIT_CALL_DEPTH" in refusal("example-recursion", {"count": 60})


def test_for_each(outputs: Any) -> None:
    assert outputs("example-for-each") == {"list": "1. APPLE\n2. BANANA\n3. CHERRY", "count": 3}
    assert outputs("example-for-each", {"words": []}) == {"list": "", "count": 0}
    words = [f"word {number}" for number in range(50)]
    assert outputs("example-for-each", {"words": words})["list"].splitlines()[-1] == "50. WORD 49"


def test_retry(outputs: Any, refusal: Any) -> None:
    assert outputs("example-retry") == {"said": "try 3\n"}
    assert "not yet" in refusal("example-retry", {"succeeds_at": 9})
