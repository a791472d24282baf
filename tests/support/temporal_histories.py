"""What a Temporal server has written down of runs."""

from __future__ import annotations

import asyncio

from temporalio.client import Client, WorkflowExecutionStatus


async def runs_of(client: Client, workflow_id: str) -> list[str]:
    """The ids of the histories that one run has had, in order."""
    found: list[str] = []
    run_id: str | None = None
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    first = history.events[0].workflow_execution_started_event_attributes.first_execution_run_id
    run_id = first
    while run_id:
        found.append(run_id)
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        last = history.events[-1]
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return found


async def all_bytes(client: Client, workflow_id: str) -> bytes:
    """All that is written down of a run, as it is."""
    parts: list[bytes] = []
    for run_id in await runs_of(client, workflow_id):
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        parts += [event.SerializeToString() for event in history.events]
    return b"".join(parts)


async def executions(client: Client, task_queue: str) -> list[tuple[str, str]]:
    """What the server lists for a task queue, when it has caught up."""
    listed: list[tuple[str, str]] = []
    async with asyncio.timeout(10):
        while not listed or any(status == "RUNNING" for _, status in listed):
            query = f"TaskQueue = '{task_queue}'"
            found = [it async for it in client.list_workflows(query)]
            listed = [(it.id, (it.status or WorkflowExecutionStatus.RUNNING).name) for it in found]
            await asyncio.sleep(0.02)
    return listed
