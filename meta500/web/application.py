"""The addresses of the live page and what answers them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from meta500.errors import UserError, choose
from meta500.web import setups
from meta500.web.archive import zipped
from meta500.web.feed import Feed
from meta500.web.guard import Guard
from meta500.web.inspectors import CHECK, Inspectors
from meta500.web.limits import Limits
from meta500.web.manager import Manager
from meta500.web.ranking import TARGET, ranking
from meta500.web.refusals import Refusal, answer
from meta500.web.storage import Storage
from meta500.web.uploads import Uploads, parts

STATIC = Path(__file__).parent / "static"
HEARTBEAT = 15
# Curves that one connection may ask for.
CURVES = 16
# Seconds within which a listener must take what is sent.
SEND = 20.0
_LOG = logging.getLogger("meta500.web")


class Page:
    """The server's state, and one method per address.

    Args:
        storage: the runs folder.
        limits: what is taken on.
    """

    def __init__(self, storage: Storage, limits: Limits) -> None:
        self.storage, self.limits = storage, limits
        # A check before a run makes what the run makes, within the same bound.
        self.inspectors = Inspectors(memory=limits.memory or CHECK)
        self.feed = Feed(limits)
        self.manager = self.feed.manager = Manager(storage, limits, self.feed.changed)
        self.uploads = Uploads(storage, limits, self.inspectors, self.manager.uses)
        self._choices: asyncio.Task[dict[str, Any]] | None = None

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Any) -> AsyncIterator[None]:
        """Find what an earlier server left, and follow it as long as this one lives."""
        self.manager.recover()
        following = asyncio.create_task(self.manager.follow())
        telling = asyncio.create_task(self.feed.run())
        self._choices = asyncio.create_task(self._offer())
        try:
            yield
        finally:
            self.feed.close()
            telling.cancel()
            self._choices.cancel()
            # Not cancelled: a process that is just being started would be known to nobody.
            self.manager.close()
            await asyncio.gather(following, telling, self._choices, return_exceptions=True)

    async def choices(self) -> dict[str, Any]:
        """What can be chosen on this machine; found out once."""
        task = self._choices
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._choices = asyncio.create_task(self._offer())
        return await asyncio.shield(task)

    async def _offer(self) -> dict[str, Any]:
        found = await self.inspectors.ask("choices", "what is installed", memory=CHECK)
        limits = {
            "max_upload": self.limits.upload,
            "max_running": self.limits.running,
            "max_queued": self.limits.queued,
            "max_curves": CURVES,
        }
        return {**found, "limits": {**found["limits"], **limits}}

    # -- addresses ------------------------------------------------------------------------------------

    async def get_choices(self, request: Request) -> Response:
        _known(request)
        return JSONResponse(await self.choices())

    async def post_upload(self, request: Request) -> Response:
        _known(request, "name")
        return JSONResponse(await self.uploads.receive(request), HTTPStatus.CREATED)

    async def post_run(self, request: Request) -> Response:
        _known(request)
        posted = await self._json(request)
        self.manager.check_room()
        setup = setups.checked(posted, await self.choices())
        upload = setup["upload"]
        model = setup["model"] if upload is None else self.uploads.name(upload)
        path = None if upload is None else str(self.storage.uploaded(upload))
        await self.inspectors.ask("setup", "the run", setup=setup, path=path, shown=model)
        job = self.manager.add(setup, model)
        return JSONResponse(
            {"id": job.id, "state": job.state, "position": self.manager.position(job)}, HTTPStatus.CREATED
        )

    async def get_runs(self, request: Request) -> Response:
        _known(request)
        return _json_text(await self.feed.list())

    async def get_run(self, request: Request) -> Response:
        _known(request)
        return _json_text(await self.feed.one(self._job(request)))

    async def get_run_events(self, request: Request) -> Response:
        _known(request)
        return await self._events(request, [self._job(request).id], single=True)

    async def get_events(self, request: Request) -> Response:
        _known(request, "ids")
        ids = list(dict.fromkeys(filter(None, request.query_params.get("ids", "").split(","))))
        if len(ids) > CURVES:
            raise UserError(f"ids names {len(ids)} runs; the curves of at most {CURVES} are sent together")
        return await self._events(request, [self.manager.get(name).id for name in ids], single=False)

    async def _events(self, request: Request, ids: list[str], single: bool) -> Response:
        self.feed.check_room()
        stream = self.feed.events(ids, single, request.headers.get("last-event-id"))
        return _Events(stream, ping=HEARTBEAT, send_timeout=SEND)

    async def post_stop(self, request: Request) -> Response:
        _known(request)
        job = self._job(request)
        self.manager.stop(job)
        return JSONResponse({"id": job.id, "state": job.state}, HTTPStatus.ACCEPTED)

    async def get_folder(self, request: Request) -> Response:
        _known(request)
        job = self._job(request)
        folder = self.storage.run(job.id)
        if not folder.is_dir():
            raise Refusal(HTTPStatus.NOT_FOUND, f"the run has no folder yet: it is {job.state}")
        name = f"meta500-{job.id}"
        headers = {"Content-Disposition": f'attachment; filename="{name}.zip"'}
        return StreamingResponse(zipped(folder, name), media_type="application/zip", headers=headers)

    async def get_log(self, request: Request) -> Response:
        _known(request)
        return PlainTextResponse(self.manager.log(self._job(request)))

    async def get_ranking(self, request: Request) -> Response:
        _known(request, "metric", "target")
        given = request.query_params
        try:
            target = float(given.get("target", TARGET))
        except ValueError:
            raise UserError(f"target must be an accuracy in (0, 1], got '{given['target'][:80]}'") from None
        return JSONResponse(ranking(self.manager.newest(), given.get("metric", "accuracy"), target))

    async def get_page(self, _: Request) -> Response:
        return FileResponse(STATIC / "page.html", headers={"Cache-Control": "no-cache"})

    async def get_plotly(self, _: Request) -> Response:
        return FileResponse(
            plotly(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"}
        )

    def _job(self, request: Request) -> Any:
        return self.manager.get(request.path_params["id"])

    async def _json(self, request: Request) -> Any:
        """The JSON of a request.

        Raises:
            Refusal: it is too large, or of another type.
            UserError: it is no JSON.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the request must be JSON, of type application/json"
            )
        body = b""
        async for part in parts(request):
            body += part
            if len(body) > self.limits.body:
                raise Refusal(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    f"the request is larger than {self.limits.body // 1024} KiB, the limit here",
                )
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise UserError("the request is no JSON") from None

    def routes(self) -> list[Route | Mount]:
        """The addresses."""
        return [
            Route("/", self.get_page),
            Route("/static/plotly.min.js", self.get_plotly),
            Route("/api/choices", self.get_choices),
            Route("/api/uploads", self.post_upload, methods=["POST"]),
            Route("/api/runs", self.get_runs),
            Route("/api/runs", self.post_run, methods=["POST"]),
            Route("/api/runs/{id}", self.get_run),
            Route("/api/runs/{id}/events", self.get_run_events),
            Route("/api/runs/{id}/stop", self.post_stop, methods=["POST"]),
            Route("/api/runs/{id}/folder.zip", self.get_folder),
            Route("/api/runs/{id}/log", self.get_log),
            Route("/api/events", self.get_events),
            Route("/api/ranking", self.get_ranking),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]


class _Events(EventSourceResponse):
    """A stream of events that ends quietly where nobody takes them any more."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            _LOG.warning("a page took nothing for %g s and was let go", SEND)


def application(
    page: Page, *, hosts: Iterable[str] = (), token: str | None = None, cookie: str = "meta500"
) -> Starlette:
    """The ASGI application of a page; see `Guard` for the other arguments."""
    return Starlette(
        routes=page.routes(),
        lifespan=page.lifespan,
        middleware=[Middleware(Guard, hosts=hosts, token=token, cookie=cookie)],
        exception_handlers={UserError: _refused, HTTPException: _no_address, Exception: _failed},  # type: ignore[dict-item]
    )


def plotly() -> Path:
    """The script of the installed plotly package.

    Raises:
        UserError: it is not installed.
    """
    import importlib.util

    found = importlib.util.find_spec("plotly")
    path = None if found is None or found.origin is None else Path(found.origin).parent
    script = None if path is None else path / "package_data" / "plotly.min.js"
    if script is None or not script.is_file():
        raise UserError("the plots of the page need the package plotly: pip install plotly")
    return script


def _known(request: Request, *names: str) -> None:
    """Refuse parameters that nothing reads."""
    for name in request.query_params:
        choose("parameter", name[:80], names)


def _json_text(text: str) -> Response:
    return Response(text, media_type="application/json")


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, UserError)
    return answer(error)


async def _no_address(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = {404: "there is nothing at this address", 405: f"{request.method[:10]} is not possible here"}
    text = told.get(error.status_code, str(error.detail))
    return JSONResponse({"error": text}, error.status_code, error.headers)


async def _failed(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"the server failed: {type(error).__name__}"}, 500)
