"""Connects to a Temporal server, and translates its errors.

    client = await connect(Address(host="localhost:7233"))      # raises RequestError if nobody answers

The SDK writes nothing to standard output, which belongs to the protocol: its log goes to ours.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import (
    Client,
    DescribeWorkflowInput,
    Interceptor,
    ListWorkflowsInput,
    OutboundInterceptor,
    QueryWorkflowInput,
    SignalWorkflowInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    StartWorkflowUpdateWithStartInput,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode, TLSConfig

from workflows_mcp.engines.temporal.wire import READABLE
from workflows_mcp.errors import Damaged, RequestError, WorkflowsError

# ----------------------------------------------------------------------------------------------------
# Errors of the server, translated, and the time that a caller waits for a worker
#
# All calls of the client go through this interceptor. That a run does not exist, or refuses an event, is left
# to the caller.

T = TypeVar("T")

WORKER_SECONDS = 40.0
"""How long to wait for a worker. A live one takes a few milliseconds; a dead one is noticed after half a
minute."""

_AWAY = {RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}

_FORBIDDEN = {RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED}

_BUSY_SECONDS = 0.2
"""The average pause before a call that the server could not do is repeated."""

_AT_ONCE_SECONDS = 1.0
"""A call that fails later than this fails for another reason than the one before it."""

_FAILING_SECONDS = 10.0
"""How long a failing call is repeated. A workflow task fails once if an update comes while its history ends,
and a query is cancelled if its worker shuts down; a longer failure has another cause."""


def no_temporal(message: str, hint: str) -> RequestError:
    return RequestError(message, hint=hint, code="no_temporal")


def refused(host: str, namespace: str, error: RPCError) -> RequestError | RPCError:
    """The error of ours for an error of the server, unless it is about the run."""
    if error.status in _AWAY:
        hint = "check that it runs and that WORKFLOWS_TEMPORAL_HOST is right; no run is lost meanwhile"
        return no_temporal(f"the Temporal server at {host} does not answer: {error.message}", hint)
    if error.status is RPCStatusCode.RESOURCE_EXHAUSTED:
        hint = "try again in a moment: nothing was done, and answering twice is harmless"
        return no_temporal(f"the Temporal server at {host} has too much to do: {error.message}", hint)
    if error.status in _FORBIDDEN:
        hint = "check WORKFLOWS_TEMPORAL_API_KEY, or the client certificate"
        return no_temporal(f"the Temporal server at {host} refuses the namespace '{namespace}'", hint)
    return error


def _passes(error: RPCError, seconds: float) -> bool:
    """Whether to repeat a call that has been failing for `seconds`."""
    if error.status is RPCStatusCode.FAILED_PRECONDITION:
        return "poller" not in error.message and seconds < _FAILING_SECONDS
    if error.status is RPCStatusCode.CANCELLED:
        return seconds < _FAILING_SECONDS
    return error.status is RPCStatusCode.RESOURCE_EXHAUSTED


async def _answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Call the server; raise its own error if the SDK has wrapped it as a timeout or cancellation."""
    try:
        return await ask()
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        if isinstance(error.__cause__, RPCError):
            raise error.__cause__ from None
        raise


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Refusals(Interceptor):
    def __init__(self, host: str, namespace: str, task_queue: str) -> None:
        self.host = host
        self.namespace = namespace
        self.task_queue = task_queue

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Asked(next, self)

    def no_worker(self) -> RequestError:
        return RequestError(
            f"no worker answers for the run in time (task queue '{self.task_queue}')",
            hint="start one with workflows-mcp worker, with the same settings, and try again: a started run "
            "continues then, and answering twice is harmless",
            code="no_worker",
        )


class _Asked(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, refusals: Refusals) -> None:
        super().__init__(next)
        self._refusals = refusals

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
        once = dataclasses.replace(input, update_id=input.update_id or uuid.uuid4().hex)
        return await self._of_a_worker(partial(super().start_workflow_update, once))

    async def start_workflow(self, input: StartWorkflowInput) -> Any:
        return await self._of_a_worker(partial(super().start_workflow, input))

    async def start_update_with_start_workflow(self, input: StartWorkflowUpdateWithStartInput) -> Any:
        # the error is raised here, so the SDK need not report it a second time
        update = input.update_workflow_input
        once = dataclasses.replace(update, update_id=update.update_id or uuid.uuid4().hex)
        quiet = dataclasses.replace(input, update_workflow_input=once, _on_start_error=lambda _: None)
        return await self._of_a_worker(partial(super().start_update_with_start_workflow, quiet))

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        return await self._of_a_worker(partial(super().query_workflow, input))

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        with self._translated():
            await super().signal_workflow(input)

    async def describe_workflow(self, input: DescribeWorkflowInput) -> Any:
        with self._translated():
            return await super().describe_workflow(input)

    def list_workflows(self, input: ListWorkflowsInput) -> Any:
        return self._listed(super().list_workflows(input))

    async def _listed(self, found: AsyncIterator[Any]) -> AsyncIterator[Any]:
        with self._translated():
            async for execution in found:
                yield execution

    async def _of_a_worker(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Make a call that needs a worker, or that starts a run."""
        limit = asyncio.timeout(WORKER_SECONDS)
        failing_since: float | None = None
        busy: RPCError | None = None
        try:
            async with limit:
                while True:
                    asked = time.monotonic()
                    try:
                        return await _answered(ask)
                    except RPCError as error:
                        now = time.monotonic()
                        if failing_since is None or now - asked > _AT_ONCE_SECONDS:
                            failing_since = now
                        if not _passes(error, now - failing_since):
                            raise self._translate(error) from None
                        # a cancelled query waits for a worker again
                        busy = None if error.status is RPCStatusCode.CANCELLED else error
                    await asyncio.sleep(_BUSY_SECONDS * random.uniform(0.5, 1.5))
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
            if not limit.expired() and _is_cancelled():
                raise asyncio.CancelledError from None
            raise self._refusals.no_worker() if busy is None else self._translate(busy) from None

    def _not_ready(self, error: RPCError) -> WorkflowsError:
        if error.status is RPCStatusCode.DEADLINE_EXCEEDED or "poller" in error.message:
            return self._refusals.no_worker()
        return Damaged(
            f"cannot read the run, because workers fail: {error.message}",
            hint="see the log of the workers: they need the same version and the same blobs directory",
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except RPCError as error:
            raise self._translate(error) from None

    def _translate(self, error: RPCError) -> WorkflowsError | RPCError:
        if error.status in (RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.DEADLINE_EXCEEDED):
            return self._not_ready(error)
        return refused(self._refusals.host, self._refusals.namespace, error)


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the server, from the settings."""

    host: str = "localhost:7233"
    namespace: str = "default"
    task_queue: str = "mcp-workflows"
    tls: bool | None = None
    """None: use TLS if there is a key."""
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    api_key: str | None = field(default=None, repr=False)


_runtime: list[Runtime] = []


def _quiet_runtime() -> Runtime:
    if not _runtime:
        forwarding = LogForwardingConfig(logger=logging.getLogger("workflows_mcp.temporal"))
        levels = "ERROR,temporalio_sdk_core=WARN"  # do not log every retry while the server is away
        _runtime.append(
            Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=levels, forwarding=forwarding)))
        )
    return _runtime[0]


async def connect(address: Address, *, seconds: float = 10.0) -> Client:
    """Connect. Raises RequestError if nobody answers, or if the namespace does not exist."""
    tls: TLSConfig | bool | None = address.tls
    if address.tls_ca or address.tls_cert:
        tls = TLSConfig(
            server_root_ca_cert=_read(address.tls_ca),
            client_cert=_read(address.tls_cert),
            client_private_key=_read(address.tls_key),
        )
    try:
        async with asyncio.timeout(seconds):
            client = await Client.connect(
                address.host,
                namespace=address.namespace,
                tls=tls,
                api_key=address.api_key,
                runtime=_quiet_runtime(),
                data_converter=READABLE,
                interceptors=[Refusals(address.host, address.namespace, address.task_queue)],
            )
            await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=address.namespace)
            )
            return client
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            hint = "make it with: temporal operator namespace create, or set WORKFLOWS_TEMPORAL_NAMESPACE"
            message = f"the Temporal server at {address.host} has no namespace '{address.namespace}'"
            raise no_temporal(message, hint) from None
        raise refused(address.host, address.namespace, error) from None
    except (RuntimeError, TimeoutError, ValueError) as error:
        text = _innermost(str(error)) or "no answer in time"
        if address.api_key:
            text = text.replace(address.api_key, "…")
        hint = _what_to_set(address, text, bool(tls or (tls is None and address.api_key)))
        raise no_temporal(f"the Temporal server at {address.host} does not answer: {text}", hint) from None


def _what_to_set(address: Address, text: str, tls: bool) -> str:
    if "Certificate" in text:
        return (
            "set WORKFLOWS_TEMPORAL_TLS_CA to the certificate of the authority that has signed the server's"
        )
    hint = "start one with workflows-mcp temporal-dev, or set WORKFLOWS_TEMPORAL_HOST"
    if not tls:
        return f"{hint}; one that speaks TLS needs WORKFLOWS_TEMPORAL_TLS=true"
    hint += "; one that does not speak TLS needs WORKFLOWS_TEMPORAL_TLS=false"
    if address.tls_cert is None:
        hint += ", one that wants to know us WORKFLOWS_TEMPORAL_TLS_CERT and _TLS_KEY"
    return hint


def _innermost(text: str) -> str:
    """The innermost message of an error of the SDK."""
    inside = re.findall(r'message: "([^"]+)"', text) or re.findall(r"error: (\w+\(\w+\))", text)
    return inside[-1] if inside else text


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error}") from None
