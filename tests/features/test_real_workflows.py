"""Workflows that other people wrote, with the answers that they expect.

They are not part of this repository: the tests run where a folder of them is found beside it, or where
WORKFLOWS_CORPUS points to one.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.rendered import Service
from workflows_mcp.settings.model import Settings

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "corpus"
CORPUS = Path(os.environ.get("WORKFLOWS_CORPUS", BESIDE)) / "graph"
CASES = json.loads((CORPUS / "cases.json").read_text()) if (CORPUS / "cases.json").is_file() else []
STATUS = {"completed": "success", "failed": "failure", "pending_action": "paused"}
PLACEHOLDERS = {"<TIMESTAMP>", "<START_TIME>"}

pytestmark = pytest.mark.skipif(not CASES, reason="no corpus of workflows beside this repository")


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_real_workflow_gives_the_expected_answers(case: dict[str, Any], tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    if case["setup"]:
        subprocess.run(["bash", "-c", case["setup"]], cwd=workspace, check=True)
    settings = Settings(
        workspace=workspace,
        home=tmp_path / "home",
        template_paths=(CORPUS / "tests",),
        allowed_paths=(Path("/tmp"),),
    )
    inputs = json.loads(json.dumps(case["inputs"]).replace("<CWD>", str(workspace)))

    async def go() -> None:
        async with Service.open(settings) as service:
            answer = await service.start(workflow=case["workflow"], inputs=inputs)
            responses = list(case["responses"])
            for number, expected in enumerate(case["steps"]):
                if number:
                    answer = await service.submit(answer["workflow_id"], {"response": responses.pop(0)})
                assert STATUS[answer["status"]] == expected["status"], answer
                if "prompt" in expected:
                    assert answer["action"]["parameters"]["prompt"] == expected["prompt"]
                assert_alike(answer.get("outputs", {}), expected.get("outputs", {}), workspace, "outputs")
                await assert_blocks(service, answer["workflow_id"], expected["blocks"], workspace)

    asyncio.run(go())


async def assert_blocks(service: Service, run_id: str, blocks: dict[str, Any], workspace: Path) -> None:
    for name, expected in blocks.items():
        found = await service.state(run_id, paths=[f"blocks.{name}"])
        block = found["values"][f"blocks.{name}"]
        assert block["metadata"]["status"] == expected["status"], name
        assert block["metadata"]["outcome"] == expected["outcome"], name
        for field, value in expected["outputs"].items():
            if field != "size_bytes":  # numbers were text once, so files had other sizes
                assert_alike(block["outputs"][field], value, workspace, f"{name}.{field}")


def assert_alike(found: Any, expected: Any, workspace: Path, where: str) -> None:
    """Equal, but for values that the engine of the expectations had turned into text."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), where
        for key, value in expected.items():
            assert_alike(found[key], value, workspace, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for item, value in zip(found, expected, strict=True):
            assert_alike(item, value, workspace, where)
    else:
        pattern = re.escape(as_text(expected).replace("<CWD>", str(workspace)))
        for placeholder in PLACEHOLDERS:
            pattern = pattern.replace(re.escape(placeholder), r"[^\n]+\n?")
        assert re.fullmatch(pattern, as_text(found)), (where, found, expected)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
