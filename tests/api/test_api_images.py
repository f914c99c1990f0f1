"""Images in chats: what is taken, what stands in the prompt for them, and what is refused by name."""

import base64
import struct
from dataclasses import replace

import pytest
from fake_client import CARD, FakeClient, says, stats
from openai import BadRequestError

from cobali_ray.api.body.images import MAX_IMAGES, MAX_PIXELS, size_of
from cobali_ray.core.request.events import Delta, End
from cobali_ray.core.request.media import Image, place_of
from tests.projectors import png

GIF = b"GIF89a" + struct.pack("<HH", 7, 5) + bytes(20)
JPEG = (
    b"\xff\xd8\xff\xe0\x00\x10" + bytes(14) + b"\xff\xff\xff\xdb\x00\x04\x00\x00"
    b"\xff\xc2\x00\x11\x08" + struct.pack(">HH", 48, 64) + bytes(12)
)


@pytest.fixture
def client():
    return FakeClient(card=replace(CARD, images=True))


def url_of(data, mime="image/png"):
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def part(url):
    return {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}


def text(said):
    return {"type": "text", "text": said}


async def ask(openai, *parts, **changes):
    messages = [{"role": "user", "content": list(parts)}]
    return await openai.chat.completions.create(model="fake", messages=messages, **changes)


async def test_an_id_holds_the_place_of_each_image(openai, client):
    one, other = png(seed=1), png(seed=2)
    await ask(openai, text("compare"), part(url_of(one)), part(url_of(other)), text("please"))
    (request,) = client.requests
    assert [image.data for image in request.images] == [one, other]
    assert [image.field for image in request.images] == [
        ("messages", 0, "content", 1, "image_url", "url"),
        ("messages", 0, "content", 2, "image_url", "url"),
    ]
    places = [place_of(image) for image in request.images]
    assert [token for token in request.prompt if token < 0] == places
    assert len(set(places)) == 2
    assert [said for said, *_ in client.tokenized] == ["<user> compare", "please\n"]


async def test_the_rendered_text_says_the_order(openai, client, monkeypatch):
    """A template may write a later message first."""
    render = client.render
    monkeypatch.setattr(
        client, "render", lambda messages, **more: render(list(reversed(messages)), **more), raising=False
    )
    first, second = png(seed=1), png(seed=2)
    messages = [{"role": "user", "content": [part(url_of(data))]} for data in (first, second)]
    await openai.chat.completions.create(model="fake", messages=messages)
    (request,) = client.requests
    assert [image.data for image in request.images] == [second, first]


async def test_a_template_that_leaves_an_image_out_is_an_error(openai, client, monkeypatch):
    monkeypatch.setattr(client, "render", lambda *_, **__: "hello", raising=False)
    with pytest.raises(BadRequestError, match="no place for images") as refusal:
        await ask(openai, part(url_of(png())))
    assert refusal.value.param == "messages"


async def test_usage_counts_what_the_engine_counted(openai, client):
    def script(request):
        yield from says("a", "b")(replace(request, prompt=request.prompt + 100 * (1,)))

    client.script = script
    answer = await ask(openai, text("what is it"), part(url_of(png())))
    assert answer.usage.prompt_tokens == client.requests[0].n_prompt + 100


@pytest.mark.parametrize(
    ("url", "says_what"),
    [
        pytest.param("data:image/png,abc", "must be a data URL", id="not-base64"),
        pytest.param("data:image/png;base64,@@@", "not valid base64", id="bad-base64"),
        pytest.param(url_of(png(), "text/plain"), "'text/plain' is not supported", id="wrong-mime"),
        pytest.param(url_of(b"RIFF1234WEBP", "image/webp"), "'image/webp' is not supported", id="webp"),
        pytest.param(url_of(b"RIFF1234WAVE" * 9), "cannot be read as an image", id="sound"),
        pytest.param(url_of(png()[:20]), "cannot be read as an image", id="cut-in-its-head"),
        pytest.param(
            url_of(JPEG[:30], "image/jpeg"), "cannot be read as an image", id="jpeg-without-a-frame"
        ),
        pytest.param("https://example.com/cat.png", "not fetched", id="remote"),
        pytest.param("file:///etc/passwd", "must be a data URL", id="file"),
        pytest.param(3, "must be a string", id="number"),
    ],
)
async def test_what_is_no_image_is_refused_by_name(openai, client, url, says_what):
    with pytest.raises(BadRequestError, match=says_what) as refusal:
        await ask(openai, text("see"), part(url))
    assert refusal.value.param == "messages[0].content[1].image_url.url"
    assert client.requests == []


def head(width, height):
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + bytes(9)


@pytest.mark.parametrize(
    ("images", "says_what"),
    [
        pytest.param([head(60_000, 60_000)], f"{MAX_PIXELS:,} pixels", id="bomb"),
        pytest.param([head(8192, 4097)] * 2, f"{MAX_PIXELS:,} pixels", id="together"),
        pytest.param([head(2001, 10)], "no side may be more than 200 times the other", id="ribbon"),
        pytest.param([head(0, 10)], "no side may be", id="nothing"),
        pytest.param([png(8, 8)] * (MAX_IMAGES + 1), f"at most {MAX_IMAGES} images", id="many"),
    ],
)
async def test_too_much_is_refused_before_anybody_decodes_it(openai, client, images, says_what):
    with pytest.raises(BadRequestError, match=says_what) as refusal:
        await ask(openai, *[part(url_of(data)) for data in images])
    assert refusal.value.param.startswith(f"messages[0].content[{len(images) - 1}]")
    assert client.requests == []


async def test_a_model_that_sees_no_images_says_so(openai, client):
    client.the_card = CARD
    with pytest.raises(BadRequestError, match="only text") as refusal:
        await ask(openai, part(url_of(png())))
    assert refusal.value.code == "unsupported_parameter"


async def test_models_say_what_they_take(get, client):
    assert (await get("/v1/models/fake")).json["architecture"]["input_modalities"] == ["text", "image"]
    client.the_card = CARD
    assert (await get("/v1/models/fake")).json["architecture"]["input_modalities"] == ["text"]


@pytest.mark.parametrize(
    ("data", "size"),
    [(png(40, 30), (40, 30)), (GIF, (7, 5)), (JPEG, (64, 48)), (b"BM" + bytes(60), None), (b"", None)],
    ids=["png", "gif", "jpeg", "bmp", "empty"],
)
def test_size_is_read_from_the_first_bytes(data, size):
    assert size_of(data) == size


class Looks(bytes):
    """Bytes that count how often one of them is looked at."""

    n = 0

    def __getitem__(self, place):
        self.n += 1
        return super().__getitem__(place)


def test_fillers_are_stepped_over_at_once():
    data = Looks(JPEG[:2] + b"\xff" * 1_000_000 + JPEG[2:])
    assert size_of(data) == (64, 48)
    assert data.n < 100


def test_places_tell_images_apart():
    places = {place_of(Image(png(8, 8, seed=i), "")) for i in range(50)}
    assert len(places) == 50
    assert max(places) < 0


# -- in the words of other APIs


def asked_of(path, data):
    """Return a body with two words and an image."""
    said = base64.b64encode(data).decode()
    if path.startswith("/v1/messages"):
        source = {"type": "base64", "media_type": "image/png", "data": said}
        turn = {"role": "user", "content": [text("what is it"), {"type": "image", "source": source}]}
        return {"max_tokens": 5, "messages": [turn]}
    if path.startswith("/v1/responses"):
        parts = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": url_of(data)}]
        return {"input": [{"role": "user", "content": parts}]}
    if path == "/api/chat":
        return {"messages": [{"role": "user", "content": "see", "images": [said]}], "stream": False}
    return {"prompt": "see", "images": [said], "stream": False}


PATHS = {
    "/v1/messages": "messages[0].content[1].source ",
    "/v1/responses": "input[0].content[1].image_url.url ",
    "/api/chat": "messages[0].images ",
    "/api/generate": "messages[0].images ",
}


@pytest.mark.parametrize(("path", "place"), PATHS.items())
async def test_every_api_takes_images_and_names_bad_ones_in_its_words(post, client, path, place):
    data = png(seed=1)
    assert (await post(path, asked_of(path, data))).status == 200
    assert [image.data for image in client.requests[-1].images] == [data]
    bad = await post(path, asked_of(path, png()[:20]))
    assert bad.status == 400
    assert place in bad.body.decode()


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_usage_counts_what_the_engine_counted(post, client, stream):
    def script(request):
        whole = stats(replace(request, prompt=request.prompt + 100 * (1,)), 1, n_cached=90)
        yield [Delta(request.request_id, "a", (1,), stats=whole)]
        yield [End(request.request_id, "stop", None, whole)]

    client.script = script
    wire = await post("/v1/messages", asked_of("/v1/messages", png()) | {"stream": stream})
    n_prompt = client.requests[0].n_prompt + 100
    assert wire.body.count(b'"input_tokens":%d,' % (n_prompt - 90)) == 1 + stream, wire.body


async def test_a_prompt_with_images_is_no_context_to_go_on_from(post):
    plain = await post("/api/generate", {"prompt": "see", "stream": False})
    assert all(token >= 0 for token in plain.json["context"])
    wire = await post("/api/generate", asked_of("/api/generate", png()))
    assert wire.json["done"]
    assert "context" not in wire.json


async def test_nobody_is_shown_the_marker_that_holds_an_images_place(post):
    """Who knew it could write it into a text that others send along."""
    messages = [{"role": "user", "content": [text("see"), part(url_of(png()))]}]
    wire = await post("/apply-template", {"messages": messages})
    assert wire.json == {"prompt": "<user> see<__media__>\n"}
