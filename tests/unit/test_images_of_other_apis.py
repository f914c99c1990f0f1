"""Images of other APIs -> those of a chat, and where errors about them point."""

import pytest

from cobali_ray.api.anthropic.body import CountBody
from cobali_ray.api.anthropic.read import chat_of as claude_chat
from cobali_ray.api.ollama.body import OllamaChatBody, OllamaGenerateBody
from cobali_ray.api.ollama.read import chat_of, named, prompt_chat_of

WHERE = ("messages", 1, "content", 1, "image_url", "url")


def url(part):
    assert part["type"] == "image_url"
    return part["image_url"]["url"]


def claude(*blocks):
    said = [{"role": "system", "content": "x"}, {"role": "user", "content": list(blocks)}]
    return claude_chat(CountBody.model_validate({"messages": said}))


def test_blocks_of_images():
    text = {"type": "text", "text": "What is it?"}
    data = {"type": "base64", "media_type": "image/webp", "data": "aGk="}
    far = {"type": "url", "url": "https://a/b.png"}
    chat, names = claude(text, *({"type": "image", "source": source} for source in (data, far)))
    told = chat.messages[1]["content"]
    assert told[0] == text
    assert [url(part) for part in told[1:]] == ["data:image/webp;base64,aGk=", "https://a/b.png"]
    assert names(WHERE) == "messages[1].content[1].source"


def test_images_that_a_tool_came_back_with():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    chat, names = claude({"type": "tool_result", "tool_use_id": "1", "content": [image]})
    assert url(chat.messages[1]["content"][0]) == "data:image/png;base64,aGk="
    assert names(("messages", 1, "content", 0)) == "messages[1].content[0].content[0]"


@pytest.mark.parametrize(
    ("data", "kind"), [("/9j/4AAQ", "jpeg"), ("iVBORw0K", "png"), ("UklGRg==", "webp"), ("aGk=", "png")]
)
def test_images_of_ollama_say_their_kind_by_how_they_begin(data, kind):
    asked = {"messages": [{"role": "user", "content": "What is it?", "images": [data]}]}
    for chat in (
        chat_of(OllamaChatBody.model_validate(asked)),
        prompt_chat_of(OllamaGenerateBody(prompt="What is it?", images=[data])),
    ):
        text, image = chat.messages[0]["content"]
        assert text == {"type": "text", "text": "What is it?"}
        assert url(image) == f"data:image/{kind};base64,{data}"
    assert named(WHERE) == "messages[1].images"
