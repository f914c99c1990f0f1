"""llama-server's own routes, as its clients call them."""

from dataclasses import replace

import pytest
from fake_client import BOS, ends_with, says, stats

from cobali_ray.api.llama_server.answer import stop_type
from cobali_ray.backend.port import InfillMarks
from cobali_ray.core.request.events import Delta, End, TokenLogprob
from cobali_ray.errors import EngineDiedError

MARKS = InfillMarks(1, 2, 3, 4, 5, BOS)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
NAMES = ["<prefix>", "<suffix>", "<middle>", "<repository>", "<file>"]


@pytest.fixture
def complete(post):
    async def go(path="/completion", **body):
        return await post(path, body)

    return go


async def test_an_answer_has_llama_servers_shape(complete, client):
    wire = await complete(prompt="once upon", n_predict=8, temperature=0.5, seed=7)
    assert wire.status == 200
    answer = wire.json
    assert (answer["content"], answer["stop"], answer["index"]) == ("Hello world!", True, 0)
    assert (answer["tokens"], answer["tokens_predicted"], answer["tokens_evaluated"]) == ([], 3, 3)
    assert (answer["stop_type"], answer["stopping_word"], answer["truncated"]) == ("eos", "", False)
    assert (answer["prompt"], answer["has_new_line"], answer["tokens_cached"]) == ("once upon", False, 1)
    settings = answer["generation_settings"]
    assert (settings["n_predict"], settings["temperature"], settings["seed"]) == (8, 0.5, 7)
    timings = answer["timings"]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (1, 2, 3)
    assert timings["prompt_ms"] == pytest.approx(90)
    assert timings["predicted_per_second"] == pytest.approx(5)


async def test_a_stream_says_the_same_and_ends_without_a_marker(complete):
    wire = await complete(prompt="once", stream=True, return_tokens=True)
    events = wire.events
    assert [event["stop"] for event in events] == [False, False, False, True]
    assert "".join(event["content"] for event in events) == "Hello world!"
    assert [event["tokens_predicted"] for event in events] == [1, 2, 3, 3]
    assert events[0]["tokens"] == [1]
    assert events[-1]["timings"]["predicted_n"] == 3
    assert b"[DONE]" not in wire.body


async def test_a_stop_string_is_named(complete, client):
    def script(request):
        yield [Delta(request.request_id, "Hello", (1,))]
        yield [End(request.request_id, "stop", None, stats(request, 1), "END")]

    client.script = script
    answer = (await complete(prompt="a", stop=["END"])).json
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", "END")
    client.script = says("Hello", reason="length")
    assert (await complete(prompt="a")).json["stop_type"] == "limit"
    assert stop_type(End("r", "stop", None, None)) == "eos"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        pytest.param("a b", [(0, 1, 2)], id="text"),
        pytest.param([5, 6], [(5, 6)], id="tokens"),
        pytest.param([5, "a", 6], [(5, 1, 6)], id="mixed"),
        pytest.param({"prompt_string": "a"}, [(0, 1)], id="object"),
        pytest.param(["a", [5, 6]], [(0, 1), (5, 6)], id="texts-and-tokens"),
        pytest.param([[5], {"prompt_string": "a"}], [(5,), (0, 1)], id="tokens-and-object"),
    ],
)
async def test_every_shape_of_prompt(complete, client, prompt, prompts):
    client.vocabulary += ["a", " b", "3", "4", "five", "six"]
    answer = (await complete(prompt=prompt)).json
    assert [request.prompt for request in client.requests] == prompts
    assert isinstance(answer, list) == (len(prompts) > 1)


async def test_several_answers_to_one_prompt(complete, client):
    answers = (await complete(prompt="a", n_cmpl=2, seed=1)).json
    assert [answer["index"] for answer in answers] == [0, 1]
    assert [request.sampling.seed for request in client.requests] == [1, 2]


async def test_only_the_cache_is_filled(complete, client):
    answer = (await complete(prompt="a", n_predict=0)).json
    assert (answer["content"], answer["tokens_predicted"]) == ("", 0)
    assert client.requests[0].max_tokens == 1
    wire = await complete(prompt="a", n_predict=0, stream=True)
    assert [event["content"] for event in wire.events] == [""]


async def test_sampling_fields_reach_the_engine(complete, client):
    await complete(
        prompt="a",
        n_predict=-1,
        seed=-1,
        repeat_penalty=1.1,
        logit_bias=[[5, 1.5], ["a", False], ["7", 2]],
        top_k=40,
    )
    request = client.requests[0]
    assert request.sampling.repetition_penalty == 1.1
    assert dict(request.sampling.logit_bias) == {5: 1.5, 1: -100.0, 2: 2.0}, "in a list a digit is a text"
    assert request.sampling.top_k == 40
    assert request.sampling.seed != -1, "-1 asks for another one each time"
    assert request.max_tokens == 62, "as many as there is room for"


async def test_samplers_that_are_not_named_are_off(complete, client):
    await complete(prompt="a", samplers=["top_k", "top_p", "infill"], top_k=9, min_p=0.3, temperature=0.2)
    sampling = client.requests[0].sampling
    assert (sampling.top_k, sampling.min_p, sampling.temperature) == (9, 0.0, 1.0)


async def test_alternatives(complete):
    answer = (await complete(prompt="a", n_probs=2)).json
    first = answer["completion_probabilities"][0]
    assert (first["id"], first["token"], first["logprob"]) == (1, "Hello", -0.5)
    assert [one["id"] for one in first["top_logprobs"]] == [0, 1]
    wire = await complete(prompt="a", n_probs=2, stream=True)
    assert [len(event["completion_probabilities"]) for event in wire.events[:-1]] == [1, 1, 1]


async def test_only_the_fields_that_are_wanted(complete):
    fields = ["content", "timings/predicted_n", "generation_settings/no/such"]
    assert (await complete(prompt="a", response_fields=fields)).json == {
        "content": "Hello world!",
        "timings/predicted_n": 3,
    }


async def test_what_clients_always_send_is_no_request_for_it(complete):
    wire = await complete(
        prompt="a", cache_prompt=True, id_slot=-1, n_keep=0, n_probs=0, repeat_last_n=64, repeat_penalty=1.0,
        dry_multiplier=0, dry_base=1.75, dry_allowed_length=2, dry_penalty_last_n=-1, mirostat=0,
        mirostat_tau=5, mirostat_eta=0.1, xtc_probability=0, xtc_threshold=0.1, timings_per_token=False,
        dynatemp_range=0, dynatemp_exponent=1, post_sampling_probs=False,
    )  # fmt: skip
    assert wire.status == 200
    assert "x-cobali-ignored-fields" not in wire.headers
    wire = await complete(prompt="a", t_max_predict_ms=500)
    assert wire.headers["x-cobali-ignored-fields"] == "t_max_predict_ms"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [[5], 1.5]}, "prompt[1]"),
        ({"prompt": [5, []]}, "prompt[1]"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "prompt.multimodal_data"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": "a", "n_cmpl": 0}, "n_cmpl"),
        ({"prompt": "a", "n_cmpl": 129}, "n_cmpl"),
        ({"prompt": "a", "n_predict": -3}, "n_predict"),
        ({"prompt": "a", "n_probs": 21}, "n_probs"),
        ({"prompt": "a", "id_slot": 2}, "id_slot"),
        ({"prompt": "a", "mirostat": 1}, "mirostat"),
        ({"prompt": "a", "dry_multiplier": 0.8}, "dry_multiplier"),
        ({"prompt": "a", "samplers": ["min_p", "top_k"]}, "samplers"),
        ({"prompt": "a", "samplers": ["top_k", "top_k"]}, "samplers"),
        ({"prompt": "a", "logit_bias": [[5]]}, "logit_bias"),
        ({"prompt": "a", "logit_bias": [[5, True]]}, "logit_bias"),
        ({"prompt": "a", "logit_bias": [[5, 0]] * 4097}, "logit_bias"),
        ({"prompt": "a", "n_probs": 1, "post_sampling_probs": True}, "post_sampling_probs"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(complete, client, body, param):
    wire = await complete(**body)
    assert (wire.status, wire.json["error"]["param"]) == (400, param)
    assert not client.requests


async def test_a_prompt_of_too_many_tokens_is_refused(complete):
    for prompt in (" a" * 65, [1] * 65, [" a" * 40, 1, " a" * 40]):
        wire = await complete(prompt=prompt)
        assert (wire.status, wire.json["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_stream_that_fails_says_so_and_ends(complete, client):
    client.script = ends_with(EngineDiedError(), "Hello")
    events = (await complete(prompt="a", stream=True)).events
    assert events[0]["content"] == "Hello"
    assert events[-1]["error"]["code"] == "engine_died"


async def test_infill_puts_files_first_and_the_place_last(complete, client):
    client.infill, client.vocabulary = MARKS, ["<s>", *NAMES]
    wire = await complete(
        "/infill",
        input_prefix="before",
        input_suffix="behind",
        prompt="line",
        input_extra=[{"filename": "a.h", "text": "extra"}],
        n_predict=4,
    )
    assert wire.status == 200
    assert wire.json["prompt"] == (
        "<s><repository>repository\n<file>a.h\nextra<file>file\n<prefix>beforeline<suffix>behind<middle>"
    )
    assert all(not special for _, _, special in client.tokenized), "control tokens in code are text"


async def test_infill_keeps_what_is_nearest_to_the_place(complete, client):
    client.infill, client.vocabulary = MARKS, ["<s>", *NAMES]
    names = " ".join(f"b{i}" for i in range(60))
    await complete(
        "/infill", input_prefix=names, input_suffix=names, input_extra=[{"text": names}], n_predict=4
    )
    assert client.requests[0].n_prompt == 60
    text = "".join(client.vocabulary[token] for token in client.requests[0].prompt)
    before, behind = text.removesuffix("<middle>").split("<suffix>")
    assert before.startswith("<s><prefix>")
    assert before.endswith("b58 b59")
    assert behind.startswith("b0 b1")
    assert (len(before.split()), len(behind.split())) == (43, 14), "three parts of four are in front"


@pytest.mark.parametrize(("fields", "n_most"), [({}, 8), ({"n_predict": -1}, 8), ({"max_tokens": 20}, 20)])
async def test_a_prompt_of_infill_that_is_cut_leaves_room_for_its_answer(complete, client, fields, n_most):
    client.infill, client.vocabulary = MARKS, ["<s>", *NAMES]
    names = " ".join(f"b{i}" for i in range(60))
    wire = await complete("/infill", input_prefix=names, input_suffix=None, **fields)
    assert wire.status == 200
    (request,) = client.requests
    assert (request.n_prompt, request.max_tokens) == (client.card.n_ctx_slot - n_most, n_most)


@pytest.mark.parametrize("extra", [{}, {"filename": "ok"}, {"filename": 1, "text": "a"}, {"text": 4}])
async def test_infill_refuses_broken_files(complete, client, extra):
    client.infill = MARKS
    wire = await complete("/infill", input_prefix="a", input_extra=[extra])
    assert wire.status == 400
    assert wire.json["error"]["param"].startswith("input_extra[0]")


async def test_infill_needs_a_vocabulary_that_has_it(complete, client):
    client.infill = None
    wire = await complete("/infill", input_prefix="a")
    assert (wire.status, wire.json["error"]["code"]) == (501, "infill_not_supported")


async def test_a_template_is_applied_and_counted(post, client):
    body = {"messages": [{"role": "user", "content": "hi there"}]}
    assert (await post("/apply-template", body)).json == {"prompt": "<user> hi there\n"}
    counted = (await post("/v1/chat/completions/input_tokens", body)).json
    answered = (await post("/chat/completions", body)).json
    assert counted == {"object": "response.input_tokens", "input_tokens": answered["usage"]["prompt_tokens"]}
    assert len(client.requests) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"temperature": "hot"}, id="kind"),
        pytest.param({"temperature": -1}, id="range"),
        pytest.param({"max_tokens": 0}, id="too-few"),
        pytest.param({"stop": [""]}, id="empty"),
        pytest.param({"top_logprobs": 3}, id="alone"),
        pytest.param({"regex": "("}, id="grammar"),
    ],
)
async def test_what_a_chat_is_refused_for_its_count_is_too(post, client, wrong):
    refused = await post("/v1/chat/completions", CHAT | wrong)
    assert refused.status == 400
    for path in ("/v1/chat/completions/input_tokens", "/apply-template"):
        assert (await post(path, CHAT | wrong)).json == refused.json
    assert not client.requests


async def test_props_tell_what_is_served(get, client):
    client.source = "{{ template }}"
    props = (await get("/props")).json
    assert (props["total_slots"], props["model_alias"]) == (4, "fake")
    assert props["chat_template"] == "{{ template }}"
    assert props["default_generation_settings"]["n_ctx"] == 64
    assert props["default_generation_settings"]["params"]["n_predict"] == -1
    assert (await get("/props?model=nobody")).status == 404


async def test_logprobs_of_the_prompt_are_told(complete, client):
    def script(request):
        tokens = [
            TokenLogprob(token, b"x", None if i == 0 else -1.0, ()) for i, token in enumerate(request.prompt)
        ]
        yield [Delta(request.request_id, "", (), prompt=tuple(tokens))]
        yield from says("Hello")(request)

    client.script = script
    for n_predict, said in ((4, "Hello"), (0, "")):
        answer = (await complete(prompt="once upon", prompt_logprobs=0, n_predict=n_predict)).json
        assert (answer["content"], len(answer["prompt_logprobs"])) == (said, answer["tokens_evaluated"])
    assert "prompt_logprobs" not in (await complete(prompt="once upon")).json


async def test_n_is_another_name_for_n_cmpl(complete, client):
    assert len((await complete(prompt="once", n=3)).json) == len(client.requests) == 3
    assert len((await complete(prompt="once", n=3, n_cmpl=2)).json) == 2
    assert (await complete(prompt="once", n=1000)).json["error"]["param"] == "n"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/apply-template", CHAT),
        ("/v1/chat/completions/input_tokens", CHAT),
        ("/v1/messages/count_tokens", CHAT),
        ("/v1/responses/input_tokens", {"input": "hi"}),
    ],
)
async def test_no_prompt_is_made_for_a_model_that_generates_nothing(complete, client, path, body):
    client.the_card = replace(client.card, generates=False)
    wire = await complete(path, **body)
    assert wire.status == 400
    assert "generates no text" in wire.json["error"]["message"]
