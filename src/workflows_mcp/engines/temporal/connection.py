"""The way to a Temporal server, and the worker that this process lends to it.

Nothing of the library is written to standard output, which belongs to the protocol: it logs where we do.
"""

from __future__ import annotations

import asyncio
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode, TLSConfig
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from workflows_mcp.engines.temporal.activities import Activities
from workflows_mcp.engines.temporal.notes import Notes
from workflows_mcp.engines.temporal.payloads import READABLE
from workflows_mcp.engines.temporal.refusals import Refusals, no_temporal, refused
from workflows_mcp.engines.temporal.workflow import Run
from workflows_mcp.errors import RequestError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server is, as the settings say."""

    host: str = "localhost:7233"
    namespace: str = "default"
    task_queue: str = "mcp-workflows"
    tls: bool | None = None
    """None: where there is a key."""
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    api_key: str | None = field(default=None, repr=False)


_runtime: list[Runtime] = []


def _quiet_runtime() -> Runtime:
    if not _runtime:
        forwarding = LogForwardingConfig(logger=logging.getLogger("workflows_mcp.temporal"))
        levels = "ERROR,temporalio_sdk_core=WARN"  # not every try of a call to a server that is away
        _runtime.append(
            Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter=levels, forwarding=forwarding)))
        )
    return _runtime[0]


async def connect(address: Address, *, seconds: float = 10.0) -> Client:
    """Raises RequestError where nobody answers, or there is no such namespace."""
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
        said = _plainly(str(error)) or "no answer in time"
        if address.api_key:
            said = said.replace(address.api_key, "…")
        hint = _what_to_set(address, said, bool(tls or (tls is None and address.api_key)))
        raise no_temporal(f"the Temporal server at {address.host} does not answer: {said}", hint) from None


def _what_to_set(address: Address, said: str, tls: bool) -> str:
    if "Certificate" in said:
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


def _plainly(said: str) -> str:
    """The innermost message of an error that the library shows as its code does."""
    inside = re.findall(r'message: "([^"]+)"', said) or re.findall(r"error: (\w+\(\w+\))", said)
    return inside[-1] if inside else said


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error}") from None


def worker_of(client: Client, address: Address, activities: Activities | None, *, steps: int) -> Worker:
    """A worker that carries out as many steps at once as this process may; without activities, none."""
    return Worker(
        client,
        task_queue=address.task_queue,
        workflows=[Run, Notes],
        activities=activities.all() if activities is not None else [],
        workflow_runner=UnsandboxedWorkflowRunner(),
        workflow_task_executor=ThreadPoolExecutor(16, thread_name_prefix="temporal-runs"),
        max_concurrent_activities=steps,
        max_heartbeat_throttle_interval=timedelta(seconds=0.5),
        default_heartbeat_throttle_interval=timedelta(seconds=0.5),
        graceful_shutdown_timeout=timedelta(seconds=0),
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),  # then another worker takes a run on
        debug_mode=True,  # an expression may take longer than the two seconds of the watchdog
    )
