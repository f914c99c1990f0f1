"""In every API a client that leaves takes its requests along."""

import asyncio

import pytest
from fake_client import Wire
from structlog.testing import capture_logs

from cobali_ray.core.request.events import Delta
from tests.waiting import until

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", CHAT | {"max_tokens": 40}),
        ("/api/chat", CHAT),
        ("/api/generate", {"prompt": "hi"}),
        ("/completion", {"prompt": "a"}),
    ],
)
async def test_a_client_that_leaves_frees_what_it_held(app, client, path, body, stream):
    def script(request):
        yield [Delta(request.request_id, "Hello", (1,))]
        yield asyncio.Event()

    client.script = script
    wire = Wire(app, path, body | {"stream": stream})
    with capture_logs() as logs:
        task = wire.start()
        await until(lambda: client.n_open == 1 and (not stream or wire.writes))
        wire.hang_up()
        await task
    assert (client.n_open, len(client.cancelled)) == (0, 1)
    assert logs[-1]["cancelled"]
