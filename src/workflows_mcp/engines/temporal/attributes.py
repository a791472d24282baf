"""The search attributes by which an operator finds runs: the name of the workflow, and how the run stands.

    temporal workflow list --query "WorkflowsName = 'deploy' AND WorkflowsStatus = 'waiting'"

The server must know them before a run can have them. Where it does not let us make them known, runs do
without: all else works the same.
"""

from __future__ import annotations

import logging

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from workflows_mcp.machine.state import RunState

logger = logging.getLogger(__name__)

NAME = SearchAttributeKey.for_keyword("WorkflowsName")
STATUS = SearchAttributeKey.for_keyword("WorkflowsStatus")
_KEYWORD = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD


def attributes_of(workflow: str) -> TypedSearchAttributes:
    """Those of a run that is just started."""
    return TypedSearchAttributes(
        [SearchAttributePair(NAME, workflow), SearchAttributePair(STATUS, "running")]
    )


def status_of(state: RunState) -> str:
    """running, waiting (for an agent, or because the user has parked it), completed, failed or cancelled."""
    return "waiting" if state.status == "running" and state.idle else state.status


async def are_known(client: Client) -> bool:
    """Whether runs can have them; the server is asked to know them where it does not."""
    service, namespace = client.operator_service, client.namespace
    try:
        listed = await service.list_search_attributes(ListSearchAttributesRequest(namespace=namespace))
        known = listed.custom_attributes
        missing = {key.name: _KEYWORD for key in (NAME, STATUS) if key.name not in known}
        if missing:
            request = AddSearchAttributesRequest(namespace=namespace, search_attributes=missing)
            await service.add_search_attributes(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:  # else somebody else has just added them
            say_that_runs_do_without(client, error.message)
            return False
        return True
    wrong = [key.name for key in (NAME, STATUS) if known.get(key.name, _KEYWORD) != _KEYWORD]
    if wrong:
        say_that_runs_do_without(client, f"{', '.join(wrong)} is not of the type Keyword")
    return not wrong


def is_refusal_of(error: RPCError) -> bool:
    """Whether the server refuses a run because it does not know its attributes after all."""
    return error.status is RPCStatusCode.INVALID_ARGUMENT and "search attribute" in error.message.lower()


def say_that_runs_do_without(client: Client, why: str) -> None:
    logger.warning(
        "runs have no search attributes on the Temporal server (namespace '%s'): %s; an operator can add "
        "them: temporal operator search-attribute create --name %s --type Keyword --name %s --type Keyword",
        client.namespace, " ".join(why.split()), NAME.name, STATUS.name,
    )  # fmt: skip
