"""Pages of this machine may use the server, pages from elsewhere may not."""

import pytest
from fake_client import ASK, CHAT, Wire

from cobali_ray.api.door.origins import is_loopback

LOOPBACK = "127.0.0.1"


def preflight(origin, **headers):
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, x-app",
    }
    return [("origin", origin), *(asked | {k.replace("_", "-"): v for k, v in headers.items()}).items()]


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "https://localhost",
        "http://app.localhost:1420",
        "http://127.0.0.1:5173",
        "http://127.8.0.1",
        "http://[::1]:8080",
    ],
)
async def test_pages_of_this_machine_may_ask(app, post, origin):
    asked = await Wire(app, CHAT, method="OPTIONS", headers=preflight(origin)).run()
    assert asked.status == 200
    assert asked.headers["access-control-allow-origin"] == origin
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert asked.headers["access-control-allow-headers"] == "authorization, x-app"
    wire = await post(CHAT, ASK, headers=[("origin", origin)])
    assert (wire.status, wire.headers["access-control-allow-origin"]) == (200, origin)
    assert "x-request-id" in wire.headers["access-control-expose-headers"]
    assert wire.headers["vary"] == "Origin"


async def test_an_image_of_a_page_from_elsewhere_loads_no_model(app):
    image = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")]
    wire = await Wire(app, "/props?model=fake", method="GET", headers=image).run()
    assert (wire.status, wire.json["error"]["code"]) == (403, "origin_not_allowed")
    link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]
    assert (await Wire(app, "/health", method="GET", headers=link).run()).status == 200
    own = [("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "no-cors")]
    assert (await Wire(app, "/health", method="GET", headers=own).run()).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "https://chat.example",
        "http://localhost.chat.example",
        "http://127.0.0.1.chat.example",
        "http://10.0.0.7:8000",
        "https://localhost@chat.example",
        "file://localhost",
        "http://[::1",
        "null",
        "",
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/metrics", "/health", "/ui/app.js"])
async def test_pages_from_elsewhere_may_not(app, client, path, origin):
    for method in ("GET", "POST", "OPTIONS"):
        headers = preflight(origin) if method == "OPTIONS" else [("origin", origin)]
        wire = await Wire(app, path, ASK, method=method, headers=headers).run()
        error = wire.json["error"]
        assert (wire.status, error["type"], error["code"]) == (
            403,
            "invalid_request_error",
            "origin_not_allowed",
        )
        assert "allowed_origins" in error["message"]
        assert "access-control-allow-origin" not in wire.headers
    assert client.requests == []


async def test_further_origins_are_a_setting(make_app, post):
    headers = [("origin", "https://chat.example:8443")]
    app = make_app(allowed_origins=("https://chat.example:8443", "null"))
    wire = await post(CHAT, ASK, app=app, headers=headers)
    assert wire.headers["access-control-allow-origin"] == "https://chat.example:8443"
    assert (await post(CHAT, ASK, app=app, headers=[("origin", "null")])).status == 200
    assert (await post(CHAT, ASK, app=app, headers=[("origin", "https://chat.example")])).status == 403
    assert (await post(CHAT, ASK, app=make_app(allowed_origins=("*",)), headers=headers)).status == 200


async def test_the_servers_own_page_is_not_foreign_wherever_it_is_served(post):
    own = [("origin", "https://gpu.example:8000"), ("host", "GPU.example:8000")]
    assert (await post(CHAT, ASK, headers=own)).status == 200
    other = [("origin", "https://gpu.example:9000"), ("host", "gpu.example:8000")]
    assert (await post(CHAT, ASK, headers=other)).status == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        pytest.param("127.0.0.1:8000", 200, id="address"),
        pytest.param("localhost:8000", 200, id="localhost"),
        pytest.param("[::1]:8000", 200, id="ipv6"),
        pytest.param("192.168.1.5:8000", 200, id="forwarded-port"),
        pytest.param("mybox:8000", 200, id="no-public-name"),
        pytest.param("host.docker.internal:8000", 200, id="container"),
        pytest.param("rebound.example:8000", 403, id="public-name"),
        pytest.param("127.0.0.1.rebound.example", 403, id="public-name-like-an-address"),
        pytest.param("Rebound.Example", 403, id="capitals"),
    ],
)
async def test_a_server_on_loopback_knows_its_name(make_app, client, host, status):
    # The page of a rebound name is same-origin: its Origin, if it sends one, is the name it asks for.
    app = make_app(listens=LOOPBACK)
    for headers in ([("host", host)], [("host", host), ("origin", f"http://{host}")]):
        wire = await Wire(app, "/v1/models", method="GET", headers=headers).run()
        assert wire.status == status
        assert status == 200 or wire.json["error"]["code"] == "host_not_allowed"


async def test_the_connection_says_where_the_server_listens_unless_told(make_app):
    wire = Wire(make_app(), "/v1/models", method="GET", headers=[("host", "gpu.example")])
    wire.scope["server"] = (LOOPBACK, 8000)
    assert (await wire.run()).status == 403
    wire = Wire(make_app(listens="0.0.0.0"), "/v1/models", method="GET", headers=[("host", "gpu.example")])
    wire.scope["server"] = (LOOPBACK, 20000)  # HAProxy's connection
    assert (await wire.run()).status == 200


async def test_a_tunnel_is_let_in_by_the_origin_of_its_pages(make_app, get):
    app = make_app(listens=LOOPBACK, allowed_origins=("https://me.tunnel.example",))
    assert (await get("/v1/models", app=app, headers=[("host", "me.tunnel.example")])).status == 200
    assert (await get("/v1/models", app=app, headers=[("host", "you.tunnel.example")])).status == 403


async def test_a_page_may_read_that_its_key_is_wrong_and_needs_none_to_ask_whether_it_may(make_app, post):
    app, origin = make_app(api_keys=("one",)), "http://localhost:3000"
    assert (await Wire(app, CHAT, method="OPTIONS", headers=preflight(origin)).run()).status == 200
    wire = await post(CHAT, ASK, app=app, headers=[("origin", origin)])
    assert (wire.status, wire.headers["access-control-allow-origin"]) == (401, origin)
    assert wire.headers["x-request-id"]


async def test_a_page_is_told_of_errors_and_gets_streams_piece_by_piece(post, app):
    origin = [("origin", "http://localhost:3000")]
    wrong = await post(CHAT, ASK | {"temperature": -1}, headers=origin)
    assert (wrong.status, "access-control-allow-origin" in wrong.headers) == (400, True)
    plain = await post(CHAT, ASK | {"stream": True})
    framed = await post(CHAT, ASK | {"stream": True}, headers=origin)
    assert len(framed.writes) == len(plain.writes) > 2


async def test_a_page_elsewhere_on_the_private_network_is_answered_if_allowed(make_app):
    app = make_app(allowed_origins=("https://chat.example",))
    headers = preflight("https://chat.example", access_control_request_private_network="true")
    wire = await Wire(app, CHAT, method="OPTIONS", headers=headers).run()
    assert (wire.status, wire.headers["access-control-allow-private-network"]) == (200, "true")


@pytest.mark.parametrize("name", ["0.0.0.0", "::", "10.1.2.3", "gpu.example", "", "localhost.example"])
def test_what_others_reach_is_not_loopback(name):
    assert not is_loopback(name)
