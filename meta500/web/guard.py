"""Who may ask: checked before anything else looks at a request.

- Host: only names of this machine, so that a page elsewhere cannot reach the server by a name that it makes
  point here (DNS rebinding). An address written as a number is no name that anybody can make point elsewhere.
- Origin and Sec-Fetch-Site: no page of another origin may use the interface, or change anything (CSRF).
- Token: demanded as ``Authorization: Bearer`` or as a cookie, wherever one is set.
- Headers of every answer: nothing from elsewhere is loaded, nobody may frame the page.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import ipaddress
import re
from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SAFE = ("GET", "HEAD")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?", re.ASCII)
# Plotly sets styles of elements; scripts come from here alone, and none stand in the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data: blob:; font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_LOGIN = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width"><title>meta500: token</title></head>
<body><h1>meta500</h1><p>{text}</p><form method="post" action="/login">
<p><label>Token <input type="password" name="token" autocomplete="off" required autofocus></label>
<button>Enter</button></p></form></body></html>
"""
_ASK = "This server asks for the token that it printed when it was started."
_TOKEN_BODY = 4096


class Guard:
    """ASGI middleware with all of these checks.

    Args:
        application: what is guarded.
        hosts: names by which the server may be called, beside addresses and "localhost".
        token: None: everybody who reaches the server may use it.
        cookie: name of the cookie; servers on other ports of the machine share cookies.
    """

    def __init__(
        self,
        application: ASGIApp,
        *,
        hosts: Iterable[str] = (),
        token: str | None = None,
        cookie: str = "meta500",
    ) -> None:
        self.application = application
        self.hosts = {"localhost", *(host.lower().rstrip(".") for host in hosts)}
        self.token, self.cookie = token, cookie
        # The cookie shows the token to nobody who reads it.
        key = (token or "").encode()
        self._proof = hmac.new(key, b"meta500 serve", hashlib.sha256).hexdigest() if token else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.application(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = await self._answer(Request(scope, receive))

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (self.application if answer is None else answer)(scope, receive, guarded)

    async def _answer(self, request: Request) -> Response | None:
        """The answer to a request that goes no further; None for one that may."""
        problem = self._foreign(request.method, request.url.path, request.headers)
        if problem:
            return JSONResponse({"error": problem}, HTTPStatus.FORBIDDEN)
        if self.token is None:
            return None
        if request.url.path == "/login" and request.method == "POST":
            return self._entered((await _form(request)).get("token", ""))
        if request.url.path == "/" and "token" in request.query_params:
            return self._entered(request.query_params["token"])
        if self._known(request):
            return None
        if request.url.path.startswith("/api/"):
            text = "this needs the token of the server: send it as 'Authorization: Bearer TOKEN'"
            return JSONResponse({"error": text}, HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": "Bearer"})
        return _login(_ASK)

    def _foreign(self, method: str, path: str, headers: Headers) -> str:
        """Why the request comes from where none may come from; "" where it may."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._own(hosts[0]):
            shown = hosts[0][:80] if hosts else ""
            return f"this server is not called '{shown}'; allow the name with --allow-host"
        changing = method not in _SAFE
        origin = headers.get("origin")
        if origin is not None and (changing or path.startswith("/api/")):
            scheme, place = _split(origin)
            # A form sent by a page without referrer has the origin "null"; the browser vouches for it then.
            vouched = origin == "null" and headers.get("sec-fetch-site") == "same-origin"
            if not vouched and (scheme not in ("http", "https") or place != hosts[0].lower()):
                return "requests from pages of other origins are refused"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and (
            changing or path.startswith("/api/")
        ):
            return "requests from pages of other sites are refused"
        return ""

    def _own(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].strip("[]").lower().rstrip(".")
        if name in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _known(self, request: Request) -> bool:
        assert self.token is not None
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _same(given.strip(), self.token):
            return True
        return _same(request.cookies.get(self.cookie, ""), self._proof)

    def _entered(self, token: str) -> Response:
        assert self.token is not None
        if not _same(token, self.token):
            return _login("This is not the token of this server.")
        answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        answer.set_cookie(self.cookie, self._proof, httponly=True, samesite="strict", path="/")
        return answer


def _split(origin: str) -> tuple[str, str]:
    """Scheme and place of an origin; empty where it is none."""
    try:
        found = urlsplit(origin if len(origin) < 300 else "")
    except ValueError:
        return "", ""
    return found.scheme, found.netloc.lower()


def _same(given: str, wanted: str) -> bool:
    """Comparison in a time that tells nothing about where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())


def _login(text: str) -> Response:
    page = _LOGIN.format(text=html.escape(text))
    # Without its origin the browser would send the form as one from nowhere.
    return HTMLResponse(page, HTTPStatus.UNAUTHORIZED, {"Referrer-Policy": "same-origin"})


async def _form(request: Request) -> dict[str, str]:
    """The fields of a short form."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _TOKEN_BODY:
            return {}
    try:
        fields = parse_qs(body.decode("latin-1"), max_num_fields=8)
    except ValueError:  # more fields
        return {}
    return {name: values[0] for name, values in fields.items()}
