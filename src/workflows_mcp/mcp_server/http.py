"""Serves MCP over streamable HTTP: one process, one service, many clients.

    workflows-mcp serve --http 127.0.0.1:8000        # MCP at http://127.0.0.1:8000/mcp

This module decides who may connect. A request must call the server by one of its names (so a web page whose
name was pointed at this machine is rejected), and must have the token, which an address that others can
reach requires. It does not know the protocol.

Answers are sent as the protocol library does by default: as JSON, or as a stream of events if there is more
to send than the answer, and always as a stream to clients of the older protocols, which can be asked
something during a call. JSON alone would lose progress, questions to the user, and disconnects.

Limits keep strangers from occupying the server: the number of connections, which leaves half of the
descriptors to runs, and the time for the head and the body of a request.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import h11
import uvicorn
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecuritySettings
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from workflows_mcp.errors import RequestError
from workflows_mcp.mcp_server.server import WorkflowsServer, build_server, log_to_stderr
from workflows_mcp.runs import descriptor_limit
from workflows_mcp.settings import Address, HttpSettings, NamedToken, Settings, in_url

logger = logging.getLogger(__name__)

PATH = "/mcp"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
GRACE_SECONDS = 2
"""How long open calls may take to end when the server shuts down."""
LEAST_TOKEN_CHARS = 16
UNNAMED = "client"
"""The name of the user of the token without a name."""
_SHUTTING_DOWN = "The server is shutting down. Runs continue when it is back: call again then."
_KEEP_ALIVE_SECONDS = 60
"""Longer than clients keep an idle connection, so that they close it first."""
_BACKLOG = 128
_BURST = 16
"""The part of the descriptors that connections may take before the first of them is refused: one in so many.

The event loop accepts a burst of connections before it looks at one, and some bursts overlap."""


def serve_http(settings: Settings, address: Address) -> int:
    """Serve until a signal comes, and return the exit code. Raises RequestError for a bad address."""
    require_token(settings.http, address)
    log_to_stderr(settings)
    return run_http(build_server(settings, exits_on_signals=False), settings, address)


def run_http(server: WorkflowsServer, settings: Settings, address: Address) -> int:
    with closing(_bound(address)) as listening:
        host, port = listening.getsockname()[:2]
        app = _protected(server, settings, Address(address.host, port), host)
        return asyncio.run(_serve(server, app, settings.http, listening, Address(address.host, port)))


def require_token(http: HttpSettings, address: Address) -> None:
    if not address.is_loopback and not _has_tokens(http):
        raise RequestError(
            f"other machines can reach {address}, and clients can run commands: a token is required",
            hint="set WORKFLOWS_HTTP_TOKEN in the environment, e.g. to the output of `openssl rand -hex 32`; "
            "clients send it as `Authorization: Bearer …`; or listen on 127.0.0.1",
            code="no_token",
        )
    short = [name for name, it in http.tokens.items() if len(it.token) < LEAST_TOKEN_CHARS]
    if http.token is not None and len(http.token) < LEAST_TOKEN_CHARS:
        short.insert(0, "WORKFLOWS_HTTP_TOKEN")
    if not address.is_loopback and short:
        which = short[0] if short[0] == "WORKFLOWS_HTTP_TOKEN" else f"the token of '{short[0]}'"
        raise RequestError(
            f"other machines can reach {address}, and {which} can be guessed: it has "
            f"fewer than {LEAST_TOKEN_CHARS} characters",
            hint="set it to a random one, e.g. the output of `openssl rand -hex 32`",
            code="no_token",
        )


async def _serve(
    server: WorkflowsServer, app: ASGIApp, http: HttpSettings, listening: socket.socket, address: Address
) -> int:
    config = uvicorn.Config(
        _answering_at_shutdown(app),
        http=_bounded_by(http),
        backlog=max(1, min(_BACKLOG, descriptor_limit() // _BURST)),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    listener = _Listener(config, address)
    signals: list[int] = []

    def on_signal(number: int) -> None:
        signals.append(number)
        listener.handle_exit(number, None)

    # Opened here and not by the listener, so that an error of the service is reported as it is.
    async with server.session_manager.run():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_exception)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number)
        await listener.serve([listening])
    return 128 + signals[0] if signals else 0


class _Listener(uvicorn.Server):
    """Says when it listens, and leaves signals alone: the service must be closed before the process ends."""

    def __init__(self, config: uvicorn.Config, address: Address) -> None:
        super().__init__(config)
        self._address = address

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_BACKLOG)  # the queue of the system is not a burst of the event loop
        sys.stderr.write(f"workflows-mcp serves MCP at http://{self._address}{PATH}\n")
        sys.stderr.flush()


def _log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log one line if a connection cannot be accepted; asyncio would log a traceback for each attempt."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in (
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
    ):
        _connections_refused.warn("a connection cannot be accepted: %s", error.strerror)
    else:
        loop.default_exception_handler(context)


class _RateLimitedLog:
    """Logs a warning at most once a minute."""

    def __init__(self) -> None:
        self._next = 0.0

    def warn(self, message: str, *values: object) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._next:
            self._next = now + 60
            logger.warning(message, *values)


_connections_refused = _RateLimitedLog()


class _Connection(H11Protocol):
    """A connection that is closed if a request is late, and refused if there are too many."""

    http: HttpSettings
    limit: int
    _deadline: asyncio.TimerHandle | None = None
    _awaited: str | None = None
    """The part of a request that has the deadline: `head` or `body`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limit:
            _connections_refused.warn(
                "%d connections are open, and no more are accepted; set WORKFLOWS_HTTP_CONNECTIONS, or the "
                "limit of open files (ulimit -n)",
                self.limit,
            )
            self._refuse(503, b"The server has too many connections. Try again later.\n")
        else:
            self._await("head")

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE:
            self._await("head")
        super().data_received(data)
        if self.conn.their_state is h11.SEND_BODY:
            self._await("body")
        else:
            self._await("head" if self.conn.their_state is h11.IDLE else None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        super().connection_lost(exc)

    def _await(self, what: str | None) -> None:
        if what == self._awaited:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._awaited = what
        if what is not None:
            seconds = self.http.header_seconds if what == "head" else self.http.body_seconds
            self._deadline = self.loop.call_later(seconds, self._time_out, what)

    def _time_out(self, what: str) -> None:
        self._refuse(408, f"The {what} of the request did not arrive in time.\n".encode())

    def _refuse(self, status: int, why: bytes) -> None:
        """Close the connection, with an answer unless one has begun."""
        if self.transport.is_closing():
            return
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True
        headers = [("content-type", "text/plain"), ("content-length", str(len(why))), ("connection", "close")]
        for event in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=why),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _bounded_by(settings: HttpSettings) -> type[H11Protocol]:
    class Connection(_Connection):
        http = settings
        limit = min(settings.connections, descriptor_limit() // 2)

    return Connection


def _answering_at_shutdown(app: ASGIApp) -> ASGIApp:
    """Answer a call that a shutdown cuts off with 503, so that it is not logged as an error."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        answered = False

        async def sent(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await app(scope, receive, sent)
        except asyncio.CancelledError:
            if not answered:
                await PlainTextResponse(_SHUTTING_DOWN, status_code=503)(scope, receive, send)

    return serve


def _bound(address: Address) -> socket.socket:
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise RequestError(
            f"there is no host {address.host!r} to listen on: {error.strerror or error}",
            hint="give an address of this machine, e.g. --http 127.0.0.1:8000",
            code="cannot_listen",
        ) from None
    family, kind, protocol, _, where = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen()  # before the service opens: a second server fails at once
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            what = "is in use by another process"
            hint = f"give another port, e.g. --http {in_url(address.host)}:0 for any that is free"
        else:
            what = f"cannot be listened on: {error.strerror}"
            hint = "give an address of this machine, and a port that you may use, e.g. --http 127.0.0.1:8000"
        raise RequestError(
            f"{address} {what}",
            hint=hint,
            code="cannot_listen",
        ) from None
    return listening


def _protected(server: WorkflowsServer, settings: Settings, address: Address, bound: str) -> ASGIApp:
    app: ASGIApp = server.streamable_http_app(
        streamable_http_path=PATH,
        transport_security=_allowed_names(settings.http, address, bound),
        # A definition may be this large, and is longer as JSON.
        max_request_body_size=2 * settings.limits.document_bytes,
    )
    app = _lower_case_host(app)
    if not _has_tokens(settings.http):
        return app
    return AuthenticationMiddleware(
        AuthContextMiddleware(RequireAuthMiddleware(app, required_scopes=[])),
        backend=BearerAuthBackend(_TokenVerifier(settings.http)),
    )


def _has_tokens(http: HttpSettings) -> bool:
    return http.token is not None or bool(http.tokens)


def _lower_case_host(app: ASGIApp) -> ASGIApp:
    """Lower the case of the Host header, because the protocol library compares case-sensitively."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(key, it.lower() if key == b"host" else it) for key, it in scope.get("headers", ())]
        await app({**scope, "headers": headers}, receive, send)

    return serve


def _allowed_names(http: HttpSettings, address: Address, bound: str) -> TransportSecuritySettings:
    """The names by which a request may call the server. DNS cannot redirect a literal address."""
    hosts = [*LOOPBACK, in_url(address.host).lower(), in_url(bound), *http.hosts]
    if bound in ("0.0.0.0", "::"):
        hosts += [socket.gethostname().lower(), *_own_addresses()]
    names = [name for host in dict.fromkeys(hosts) for name in (host, f"{host}:*")]
    origins = [f"{scheme}://{name}" for name in names for scheme in ("http", "https")]
    return TransportSecuritySettings(allowed_hosts=names, allowed_origins=origins)


def _own_addresses() -> list[str]:
    import psutil

    found = [it for interface in psutil.net_if_addrs().values() for it in interface]
    literal = [it.address.partition("%")[0] for it in found if it.family in (socket.AF_INET, socket.AF_INET6)]
    return [in_url(it) for it in literal]


class _TokenVerifier:
    """Compares with every token in constant time. The token without a name belongs to agents."""

    def __init__(self, http: HttpSettings) -> None:
        unnamed = {UNNAMED: NamedToken(http.token)} if http.token is not None else {}
        self._tokens = {**unnamed, **http.tokens}

    async def verify_token(self, token: str) -> AccessToken | None:
        found: AccessToken | None = None
        for name, known in self._tokens.items():
            if hmac.compare_digest(token.encode(), known.token.encode()):
                found = AccessToken(token=token, client_id=name, scopes=[known.role])
        return found
