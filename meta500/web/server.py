"""The socket, the signals and the words on the terminal of ``meta500 serve``."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import secrets
import signal
import socket
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from meta500.errors import UserError
from meta500.web.application import Page, application
from meta500.web.limits import Limits
from meta500.web.storage import Storage

_SHORTEST = 16
# Seconds that open connections get when the server is stopped.
_FAREWELL = 3
_HEADERS = 16384


@dataclass(frozen=True)
class Serving:
    """How the server is reached.

    Attributes:
        host: address or name to bind to.
        port: 0: any that is free.
        runs: the runs folder.
        token_file: where the token stands; None: a new one, where one is needed.
        allow_hosts: further names by which the server may be called; with one, a token is demanded.
        keep_running: whether runs go on when the server is stopped.
    """

    host: str
    port: int
    runs: Path
    token_file: Path | None
    allow_hosts: tuple[str, ...]
    keep_running: bool


def serve(how: Serving, limits: Limits) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Raises:
        UserError: the address cannot be bound to, or the folder or token cannot be used.
    """
    with contextlib.closing(Storage(how.runs)) as storage, bound(how.host, how.port) as listening:
        token = read_token(how.token_file) if how.token_file is not None else None
        # A further name means that something stands before the server, and others reach it through that.
        generated = token is None and (bool(how.allow_hosts) or not is_loopback(listening))
        if generated:
            token = secrets.token_urlsafe(32)
        logging.basicConfig(format="meta500: %(message)s", level=logging.WARNING, stream=sys.stderr)
        _no_core_dumps()
        asyncio.run(_serve(how, limits, storage, listening, token, generated))


async def _serve(
    how: Serving,
    limits: Limits,
    storage: Storage,
    listening: socket.socket,
    token: str | None,
    generated: bool,
) -> None:
    page = Page(storage, limits)
    port = listening.getsockname()[1]
    hosts = names_of_this_machine(how)
    config = uvicorn.Config(
        application(page, hosts=hosts, token=token, cookie=f"meta500-{port}"),
        log_level="warning",
        log_config=None,
        access_log=False,  # addresses can hold the token
        server_header=False,
        ws="none",
        http="h11",
        h11_max_incomplete_event_size=_HEADERS,
        limit_concurrency=4 * limits.clients,
        timeout_graceful_shutdown=_FAREWELL,
    )
    server = _Server(config, page)
    secret = f"?token={token}" if generated else ""
    sys.stdout.write(f"Listening on {address(how.host, port)}{secret}\n")
    sys.stdout.flush()
    await server.serve(sockets=[listening])
    active = await _left(page, how.keep_running)
    if active and how.keep_running:
        sys.stdout.write(f"{_runs(active)} on; start the server again to follow\n")
    elif active:
        sys.stdout.write(f"{active} {'run' if active == 1 else 'runs'} stopped\n")
    sys.stdout.flush()


async def _left(page: Page, keep: bool) -> int:
    """End what runs, unless it is kept; gives its number."""
    running = page.manager.active()
    if running and not keep:
        sys.stdout.write(f"Stopping {running} {'run' if running == 1 else 'runs'}\n")
        sys.stdout.flush()
    return await page.manager.shut(stop=not keep)


def _runs(count: int) -> str:
    return f"{count} run goes" if count == 1 else f"{count} runs go"


class _Server(uvicorn.Server):
    """Ends the streams of events when it is told to end, which would else keep it waiting."""

    def __init__(self, config: uvicorn.Config, page: Page) -> None:
        super().__init__(config)
        self.page = page

    def handle_exit(self, sig: int, frame: Any) -> None:
        # Not passed on: after Ctrl-C there is work to do, and the process ends as one that is done.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        asyncio.get_event_loop().call_soon_threadsafe(self.page.feed.close)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        UserError: the address is unknown, taken or not allowed.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, where = found[0]
        return socket.create_server(where[:2], family=family, backlog=256)
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --host or --port"
        ) from None


def is_loopback(listening: socket.socket) -> bool:
    """Whether only this machine reaches it."""
    return ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def address(host: str, port: int) -> str:
    """The page's address for a browser."""
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname(), "": socket.gethostname()}.get(
        host, host
    )
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"


def names_of_this_machine(how: Serving) -> Sequence[str]:
    """Names that a browser may use in the address; of the machine only where others reach it."""
    own = [how.host] if how.host not in ("", "0.0.0.0", "::") else [socket.gethostname(), socket.getfqdn()]
    return [*own, *how.allow_hosts]


def read_token(path: Path) -> str:
    """The token in a file that only its owner can read.

    Raises:
        UserError: others can read it, or it holds no token.
    """
    try:
        mode = path.stat().st_mode
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no ASCII text"
        raise UserError(f"--token-file {path}: cannot be read: {reason}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(f"--token-file {path}: others may read it: chmod 600 {path}")
    if len(token) < _SHORTEST or not token.isprintable() or " " in token:
        raise UserError(
            f"--token-file {path}: must hold one token of at least {_SHORTEST} characters without spaces"
        )
    return token


def _no_core_dumps() -> None:
    """Neither this process nor the runs that inherit it fill the disk with their memory."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
