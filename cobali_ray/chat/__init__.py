"""How a chat becomes text for a model, and how its answers are read. No HTTP, llama.cpp or Ray.

How a model writes reasoning and calls is a `Format` (`format.py`), derived from its own template or, where
that does not tell enough, written down (`KNOWN_FORMATS`). `splitter.py` takes answers apart by it while they
are written, and text that turns out to be no call is content, unchanged; `call_grammar.py` makes from it the
grammar that restricts an answer to calls, in Lark (`lark.py`) around the tools' schemas, each of which has
been judged under its own name. Control tokens that a marker consists of (`backend/markers.py`) are `<[id]>`
there, and shown in the answer.

On the way in, `api/call/prompt.py` makes of a chat's body the text to continue, and the `Speech` by which its
answers are read; on the way out, `api/reply/turn.py` has a splitter for each choice, none for a chat without
tools and reasoning. docs/tool-formats.md has the format of each of llama.cpp's templates.
"""
