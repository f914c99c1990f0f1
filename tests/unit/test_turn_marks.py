"""Where turns begin: which control tokens that is, by what a template writes, and where they stand."""

import pytest

from cobali_ray.backend.turn_marks import between_turns, turn_marks, turns_of
from cobali_ray.chat.template import ChatTemplate

FAMILIES = {
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "header": (
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
        "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n"
        "{% endif %}"
    ),
    "inst": (
        "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"
        "{{ m.content }}</s>{% endif %}{% endfor %}"
    ),
    "roles": (
        "{% for m in messages %}{{ '<User>' if m.role == 'user' else '<Assistant>' }}{{ m.content }}"
        "{{ '' if m.role == 'user' else '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}<Assistant><think>{% endif %}"
    ),
    "words": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ",
}
SPECIALS = [
    "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]",
    "[/INST]", "</s>", "<User>", "<Assistant>", "<think>",
]  # fmt: skip


class Words:
    """A vocabulary of characters and control tokens, which are numbered from 1,000 on."""

    end_tokens = frozenset({1000 + SPECIALS.index("</s>")})

    def __init__(self, source):
        self.chat = ChatTemplate(source)

    def tokenize(self, text, *, add_special=False):
        del add_special
        tokens = []
        while text:
            special = next((one for one in SPECIALS if text.startswith(one)), text[0])
            tokens.append(1000 + SPECIALS.index(special) if special in SPECIALS else ord(special))
            text = text[len(special) :]
        return tokens

    def detokenize(self, tokens, *, special=True):
        return "".join((SPECIALS[t - 1000] if special else "") if t >= 1000 else chr(t) for t in tokens)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("chatml", {"<|im_start|>"}),
        ("header", {"<|start_header_id|>"}),
        ("inst", {"[INST]", "[/INST]"}),
        ("roles", {"<User>", "<Assistant>"}),
        ("words", set()),
    ],
)
def test_turns_begin_with_the_control_token_that_does_not_end_the_one_before(family, expected):
    assert {SPECIALS[token - 1000] for token in turn_marks(Words(FAMILIES[family]))} == expected


def test_turns_of_a_prompt_begin_at_their_marks_but_for_the_first():
    words = Words(FAMILIES["chatml"])
    chat = [{"role": role, "content": role} for role in ("system", "user")]
    text = words.chat.render(chat, tools=None, add_generation_prompt=True)
    prompt = words.tokenize(text)
    starts = [text.index("<|im_start|>user"), text.index("<|im_start|>assistant")]
    assert turns_of(prompt, turn_marks(words)) == tuple(len(words.tokenize(text[:at])) for at in starts)
    assert turns_of(prompt, frozenset()) == ()


def test_a_template_that_refuses_a_chat_has_no_turns():
    assert between_turns(ChatTemplate("{{ raise_exception('no') }}")) == ()
