"""Markers: which control tokens they are made of."""

import pytest

from cobali_ray.backend.markers import Markers
from cobali_ray.backend.scripted import ByteVocab

CONTROLS = {300: "<|call|>", 301: "<|open|>", 302: "<|sep|>", 303: "[CALL_ID]"}
END = 300


class Words(ByteVocab):
    """Bytes and a few control tokens."""

    end_tokens = frozenset({END})

    def tokenize(self, text, *, add_special=True, parse_special=True, **_):
        tokens = [1] if add_special else []
        while text:
            token = next((t for t, name in CONTROLS.items() if parse_special and text.startswith(name)), None)
            tokens += list(text[0].encode()) if token is None else [token]
            text = text[len(CONTROLS.get(token, "x")) :]
        return tokens

    def detokenize(self, tokens, *, special=True, **_):
        return "".join(
            CONTROLS[t] if t in CONTROLS and special else "" if t in CONTROLS else bytes([t]).decode("latin1")
            for t in tokens
        )


@pytest.mark.parametrize(
    ("marker", "pieces"),
    [
        ("<tool_call>", ("<tool_call>",)),
        ("<|open|>call tool=☃\n", (301, "call tool=☃\n")),
        ('" index="1"<|sep|>', ('" index="1"', 302)),
        ("<|open|><|sep|>x<|open|>", (301, 302, "x", 301)),
        ("<|call|>", ()),
        ("x<|call|>", ("x",)),
        ("", ()),
    ],
)
def test_a_marker_is_cut_at_its_control_tokens(marker, pieces):
    assert Markers(Words())(marker) == pieces


def test_the_tokens_that_an_answer_has_to_show():
    found = Markers(Words()).control_tokens(["<|open|>tools<|sep|>", "[CALL_ID]", "<|call|>", "<tool_call>"])
    assert found == {301, 302, 303}
