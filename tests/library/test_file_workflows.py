"""process-config and generate-readme."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.rows("G22")

CONFIG = {"server": {"port": 80, "host": "localhost"}, "plugins": ["a"], "debug": False}


@pytest.fixture
def config(workspace: Path) -> Path:
    path = workspace / "app config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_overrides_are_merged_into_another_file(config: Path, workspace: Path, outputs: Any) -> None:
    merged = {
        "server": {"port": 8080, "host": "localhost"},
        "plugins": ["b"],
        "debug": False,
        "new": {"x": 1},
    }
    found = outputs(
        "process-config",
        {
            "config_path": "app config.json",
            "overrides": {"server": {"port": 8080}, "plugins": ["b"], "new": {"x": 1}},
            "output_path": "build/$(touch pwned).json",
        },
    )
    target = workspace / "build" / "$(touch pwned).json"
    assert found == {"config": merged, "path": str(target), "changed": True}
    assert json.loads(target.read_text()) == merged
    assert json.loads(config.read_text()) == CONFIG
    assert list(workspace.rglob("pwned")) == []


def test_overrides_are_merged_in_place_and_nothing_new_changes_nothing(config: Path, outputs: Any) -> None:
    inputs = {"config_path": "app config.json", "overrides": '{"debug": true}'}
    assert outputs("process-config", inputs)["changed"] is True
    assert json.loads(config.read_text()) == {**CONFIG, "debug": True}
    assert outputs("process-config", inputs)["changed"] is False


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no file"),
        ("{broken", "is not valid JSON"),
        ("[1]", "updates can only be merged into an object"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_and_nothing_is_written(
    workspace: Path, refusal: Any, content: str | None, reason: str
) -> None:
    if content is not None:
        (workspace / "c.json").write_text(content)
    assert reason in refusal("process-config", {"config_path": "c.json", "overrides": {"a": 1}})
    assert (workspace / "c.json").exists() == (content is not None)
    assert content is None or (workspace / "c.json").read_text() == content


def test_files_outside_of_the_working_directory_are_out_of_reach(
    config: Path, tmp_path: Path, refusal: Any
) -> None:
    inputs = {"config_path": "app config.json", "output_path": "../outside.json"}
    assert "may not be written" in refusal("process-config", inputs)
    assert "may not be read" in refusal("process-config", {"config_path": "/etc/hostname"})
    assert not (tmp_path / "outside.json").exists()


README = """# Rocket {{ 7 * 7 }}

Goes up: ${inputs.path}

## Installation

```sh
pip install rocket
```

## Usage

```python
fly()
```

## Safety

Stand back.

## License

MIT
"""


def test_a_readme_is_written_from_facts_that_are_never_read_as_templates(
    workspace: Path, outputs: Any
) -> None:
    found = outputs(
        "generate-readme",
        {
            "project_name": "Rocket {{ 7 * 7 }}",
            "description": "Goes up: ${inputs.path}",
            "install": "pip install rocket",
            "usage": "fly()",
            "language": "python",
            "sections": [{"title": "Safety", "body": "Stand back."}],
            "license": "MIT",
            "path": "docs/READ ME.md",
        },
    )
    assert found == {
        "written": True,
        "reason": "written",
        "path": str(workspace / "docs" / "READ ME.md"),
        "content": README,
    }
    assert (workspace / "docs" / "READ ME.md").read_text() == README


def test_a_readme_that_is_there_is_left_alone_unless_told(workspace: Path, outputs: Any) -> None:
    readme = workspace / "README.md"
    readme.write_bytes(b"written by hand \xff")
    found = outputs("generate-readme", {"project_name": "Rocket"})
    assert (found["written"], found["content"]) == (False, "# Rocket\n")
    assert "overwrite: true" in found["reason"]
    assert readme.read_bytes() == b"written by hand \xff"
    assert outputs("generate-readme", {"project_name": "Rocket", "overwrite": True})["reason"] == "replaced"
    assert readme.read_text() == "# Rocket\n"


def test_a_section_without_a_title_is_an_error_that_says_so(workspace: Path, refusal: Any) -> None:
    message = refusal("generate-readme", {"project_name": "Rocket", "sections": [{"body": "x"}]})
    assert "'title' does not exist" in message
    assert list(workspace.iterdir()) == []
