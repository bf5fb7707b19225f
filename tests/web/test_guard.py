"""Who may ask: hosts, origins, sites, tokens, and the headers of every answer."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from meta500.web.guard import Guard

TOKEN = "a-token-of-thirty-two-characters"


def client(token=None, hosts=(), base="http://localhost:8500"):
    async def answer(request):
        return PlainTextResponse("here")

    routes = [Route(path, answer, methods=["GET", "POST"]) for path in ("/", "/api/runs", "/static/page.css")]
    guarded = Guard(Starlette(routes=routes), hosts=hosts, token=token, cookie="meta500-8500")
    return TestClient(guarded, base_url=base, follow_redirects=False)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "localhost.:80", "127.0.0.1:8500", "[::1]:8500", "192.168.1.7", "lab-7:85"],
)
def test_hosts_of_this_machine(host):
    assert client(hosts=["lab-7"]).get("/api/runs", headers={"Host": host}).text == "here"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "a b",
        "localhost:x",
        "[::1",
        "lab-7",
    ],
)
def test_other_hosts(host):
    answer = client().get("/", headers={"Host": host})
    assert answer.status_code == 403 and "--allow-host" in answer.json()["error"]


SAME = "http://localhost:8500"


@pytest.mark.parametrize(
    ("method", "path", "headers", "code"),
    [
        ("POST", "/api/runs", {}, 200),
        ("POST", "/api/runs", {"Origin": SAME}, 200),
        ("POST", "/api/runs", {"Origin": SAME, "Sec-Fetch-Site": "same-origin"}, 200),
        ("POST", "/api/runs", {"Origin": "http://localhost:9999"}, 403),
        ("POST", "/api/runs", {"Origin": "http://evil.example"}, 403),
        ("POST", "/api/runs", {"Origin": "null"}, 403),
        ("POST", "/api/runs", {"Origin": "null", "Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", "/api/runs", {"Origin": "null", "Sec-Fetch-Site": "same-origin"}, 200),
        ("POST", "/api/runs", {"Origin": "file://localhost:8500"}, 403),
        ("POST", "/api/runs", {"Origin": ""}, 403),
        ("POST", "/api/runs", {"Origin": "http://["}, 403),
        ("GET", "/api/runs", {"Origin": "http://[x]:1"}, 403),
        ("POST", "/api/runs", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", "/api/runs", {"Sec-Fetch-Site": "same-site"}, 403),
        ("GET", "/api/runs", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", "/api/runs", {"Origin": "http://evil.example"}, 403),
        ("GET", "/api/runs", {"Sec-Fetch-Site": "none"}, 200),
        # The page itself may be opened by a link from elsewhere.
        ("GET", "/", {"Sec-Fetch-Site": "cross-site"}, 200),
        ("POST", "/", {"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_origins(method, path, headers, code):
    assert client().request(method, path, headers=headers).status_code == code


def test_headers_of_every_answer():
    with_token = client(token=TOKEN)
    answers = [
        client().get("/"),
        client().get("/api/nothing"),
        client().get("/", headers={"Host": "evil.example"}),
        with_token.get("/"),
        with_token.get("/api/runs"),
        with_token.get("/", params={"token": TOKEN}),
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy and "connect-src 'self'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] in ("no-referrer", "same-origin")
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("given", ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ä" * 32, "\ud800"])
def test_wrong_tokens(given):
    live = client(token=TOKEN)
    raw = f"Bearer {given}".encode("utf-8", "surrogateescape" if given != "\ud800" else "replace")
    assert live.get("/api/runs", headers={b"Authorization": raw}).status_code == 401
    if given != "\ud800":
        answer = live.get("/", params={"token": given})
        assert answer.status_code == 401 and "set-cookie" not in answer.headers
        assert live.post("/login", data={"token": given}).status_code == 401
    live.cookies.set("meta500-8500", TOKEN)
    assert live.get("/api/runs").status_code == 401, "the token itself is no cookie"


def test_token_in_a_header():
    live = client(token=TOKEN)
    refused = live.get("/api/runs")
    assert refused.status_code == 401 and "Authorization: Bearer" in refused.json()["error"]
    assert live.get("/static/page.css").status_code == 401
    assert live.get("/api/runs", headers={"Authorization": f"Bearer {TOKEN}"}).text == "here"
    assert live.get("/api/runs", headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401


@pytest.mark.parametrize("way", ["address", "form"])
def test_token_becomes_a_cookie(way):
    live = client(token=TOKEN)
    if way == "address":
        answer = live.get("/", params={"token": TOKEN})
    else:
        asked = live.get("/")
        assert asked.status_code == 401 and 'action="/login"' in asked.text
        assert asked.headers["referrer-policy"] == "same-origin"
        answer = live.post("/login", data={"token": TOKEN}, headers={"Origin": SAME})
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and TOKEN not in cookie
    assert live.get("/api/runs").text == "here"
    # The cookie alone is no protection against pages of other sites.
    assert live.post("/api/runs", headers={"Origin": "http://evil.example"}).status_code == 403


def test_login_reads_no_long_forms():
    live = client(token=TOKEN)
    assert live.post("/login", data={"token": TOKEN, "x": "y" * 100_000}).status_code == 401
    assert live.post("/login", data={"token": TOKEN, **dict.fromkeys("abcdefgh", "1")}).status_code == 401
    assert live.post("/login", content=b"").status_code == 401


def test_login_from_another_site():
    answer = client(token=TOKEN).post(
        "/login", data={"token": TOKEN}, headers={"Origin": "http://evil.example"}
    )
    assert answer.status_code == 403 and "set-cookie" not in answer.headers


def test_web_sockets_are_closed():
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), client().websocket_connect("/"):
        pass
