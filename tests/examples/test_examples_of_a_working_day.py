"""The examples run to their intended end, with a real repository, real commands and a real server on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import forked
from support.screen import Screen
from workflows_mcp.runs.callers import AGENT_VARIABLES

ROOT = Path(__file__).resolve().parents[2]


class Project:
    """A git repository with a remote, in which the examples are run from the terminal."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "project"
        self.remote = directory / "remote.git"
        self.path.mkdir()
        of_agents = ("WORKFLOWS_", "GIT_", *AGENT_VARIABLES)
        keep = {key: value for key, value in os.environ.items() if not key.startswith(of_agents)}
        self.environment = {
            **keep,
            "WORKFLOWS_HOME": str(directory / "home"),
            "HOME": str(directory),
            "NO_COLOR": "1",
            **{f"GIT_{who}_NAME": "A" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "a@example.org" for who in ("AUTHOR", "COMMITTER")},
        }
        subprocess.run(["git", "init", "-q", "--bare", str(self.remote)], check=True)
        self.git("init", "-q", "-b", "main")
        self.git("remote", "add", "origin", str(self.remote))
        self.write("app.py", "print('one')\n")
        self.commit("Add the app")

    def git(self, *arguments: str, at: Path | None = None) -> str:
        command = ["git", "-C", str(at or self.path), *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    def write(self, name: str, text: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def commit(self, message: str) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)

    def run(self, example: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        done = subprocess.run(
            [*forked.command(), "run", str(ROOT / "examples" / example), "--json", *arguments],
            cwd=self.path,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, answer

    def decide(self, answer: dict[str, Any], choice: str) -> tuple[int, dict[str, Any]]:
        """A person decides at the gate of a run, at a terminal."""
        desk = SimpleNamespace(command=forked.command(), workspace=self.path, environment=self.environment)
        screen = Screen(desk, "answer", answer["workflow_id"], choice, "--json")
        screen.wait_for("comment")
        screen.type("as discussed\n")
        screen.wait_for("type approve to confirm")
        screen.type("approve\n")
        code, printed = screen.end()
        return code, json.loads(printed)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def answers(project: Project, tmp_path: Path, **given: Any) -> str:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps(given))
    return str(path)


def release(project: Project, *, tests: str = "true") -> tuple[int, Any]:
    publish = 'echo "published $VERSION" > ../published.txt'
    given = {"version": "1.4.0", "test_command": tests, "publish_command": publish}
    inputs = [part for name, value in given.items() for part in ("--input", f"{name}={value}")]
    return project.run("release.yaml", *inputs)


@pytest.mark.rows("G10", "P1")
def test_a_release_is_tested_tagged_approved_and_published(project: Project, tmp_path: Path) -> None:
    code, answer = release(project, tests="python3 app.py")
    assert (code, answer["status"]) == (3, "waiting"), answer
    assert "v1.4.0 is tagged here" in answer["decisions"][0]["message"]
    assert project.git("tag", at=project.remote) == ""
    code, answer = project.decide(answer, "approve")
    assert (code, answer["status"]) == (0, "completed"), answer
    decided_by = answer["outputs"].pop("decided_by")
    assert decided_by == pwd.getpwuid(os.getuid()).pw_name
    assert answer["outputs"] == {"released": True, "tag": "v1.4.0", "changes": "- Add the app\n"}
    assert project.git("tag", at=project.remote) == "v1.4.0"
    assert "- Add the app" in project.git("tag", "-l", "--format=%(contents)", "v1.4.0")
    assert (tmp_path / "published.txt").read_text() == "published 1.4.0\n"


@pytest.mark.rows("P1")
def test_a_release_that_is_not_approved_leaves_nothing_behind(project: Project, tmp_path: Path) -> None:
    code, answer = project.decide(release(project)[1], "reject")
    assert (code, answer["status"]) == (0, "completed"), answer
    assert answer["outputs"]["released"] is False
    assert project.git("tag") == ""
    assert project.git("tag", at=project.remote) == ""
    assert not (tmp_path / "published.txt").exists()


@pytest.mark.parametrize("broken", ["tests", "clean"])
def test_a_release_that_is_not_ready_fails_and_asks_nobody(project: Project, broken: str) -> None:
    if broken == "clean":
        project.write("app.py", "print('two')\n")
    code, answer = release(project, tests="exit 3" if broken == "tests" else "true")
    assert (code, answer["status"]) == (1, "failed")
    assert f"'{broken}'" in answer["error"]["message"]
    assert project.git("tag") == ""


class Downloads(BaseHTTPRequestHandler):
    """Every path has a body of its own. Each third one fails at first, and `/gone` always."""

    asked: Counter[str]
    under_way = 0
    most = 0
    lock = threading.Lock()
    together: threading.Barrier

    def do_GET(self) -> None:
        kind = type(self)
        with kind.lock:
            kind.asked[self.path] += 1
            kind.under_way += 1
            kind.most = max(kind.most, kind.under_way)
            first = kind.asked[self.path] == 1
        try:
            number = self.path.rpartition("-")[2]
            if self.path == "/gone" or (first and number.isdecimal() and int(number) % 3 == 0):
                self.send_error(503)
                return
            body = body_of(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        finally:
            with kind.lock:
                kind.under_way -= 1

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def body_of(path: str) -> bytes:
    return f"the body of {path}\n".encode() * 500


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Downloads,), {"asked": Counter(), "under_way": 0, "most": 0})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as it:
        thread = threading.Thread(target=it.serve_forever, daemon=True)
        thread.start()
        yield it
        it.shutdown()


def download(project: Project, server: ThreadingHTTPServer, paths: list[str]) -> tuple[int, Any]:
    urls = [f"http://127.0.0.1:{server.server_port}{path}" for path in paths]
    return project.run("downloads.yaml", "--input", f"urls:={json.dumps(urls)}")


@pytest.mark.rows("G10", "G11", "X7")
def test_fifty_files_are_downloaded_four_at_a_time_and_none_holds_the_data_of_another(
    project: Project, server: ThreadingHTTPServer
) -> None:
    paths = [f"/file-{number}" for number in range(50)]
    code, answer = download(project, server, paths)
    assert (code, answer["status"]) == (0, "completed"), answer
    handler: Any = server.RequestHandlerClass
    assert handler.most <= 4
    assert {path: handler.asked[path] for path in paths} == {
        path: 2 if number % 3 == 0 else 1 for number, path in enumerate(paths)
    }
    for number, (path, file) in enumerate(zip(paths, answer["outputs"]["files"], strict=True)):
        saved = (project.path / "downloads" / f"{number}-{path[1:]}").read_bytes()
        assert saved == body_of(path)
        assert file["bytes"] == len(saved)
        assert file["stdout"].strip() == hashlib.sha256(saved).hexdigest()
    report = (project.path / "downloads" / "report.md").read_text()
    assert report.startswith("# 50 of 50 files downloaded\n")
    assert answer["outputs"]["failed"] == []


def test_a_download_that_fails_for_good_fails_the_run_and_is_in_the_report(
    project: Project, server: ThreadingHTTPServer
) -> None:
    code, answer = download(project, server, ["/file-1", "/gone", "/file-2"])
    assert (code, answer["status"]) == (1, "failed")
    assert answer["outputs"]["failed"] == [1]
    report = (project.path / "downloads" / "report.md").read_text()
    assert report.startswith("# 2 of 3 files downloaded\n")
    assert "/gone: FAILED, curl: (22)" in report
    handler: Any = server.RequestHandlerClass
    assert handler.asked["/gone"] == 4


FINDINGS = {
    "a.py": [
        {"file": "a.py", "line": 9, "severity": "low", "message": "a name"},
        {"file": "a.py", "line": 3, "severity": "high", "message": "a secret"},
    ],
    "b.py": [],
    "new file.py": [{"file": "new file.py", "line": 1, "severity": "medium", "message": "no test"}],
}


@pytest.mark.rows("S5", "S6", "S7")
def test_every_changed_file_is_reviewed_and_the_findings_are_merged_and_sorted(
    project: Project, tmp_path: Path
) -> None:
    for name in ("a.py", "b.py", "same.py"):
        project.write(name, "before\n")
    project.commit("Add three files")
    for name in FINDINGS:
        project.write(name, "after\n")
    said = {
        f"review/{number}/look": f"Here you are: {json.dumps(found)}"
        for number, found in enumerate(FINDINGS.values())
    }
    code, answer = project.run("review-changes.yaml", "--answers", answers(project, tmp_path, **said))
    assert (code, answer["status"]) == (0, "completed"), answer
    assert answer["result"]["files"] == 3
    assert [(it["severity"], it["file"], it["line"]) for it in answer["result"]["findings"]] == [
        ("high", "a.py", 3),
        ("medium", "new file.py", 1),
        ("low", "a.py", 9),
    ]


def test_a_review_without_changes_asks_nobody(project: Project) -> None:
    code, answer = project.run("review-changes.yaml")
    assert (code, answer["result"]) == (0, {"files": 0, "findings": []})
