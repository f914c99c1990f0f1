"""What OpenAI's documentation says of the stream of a response, and what Codex takes from one."""

import json

ENDS = {"response.completed", "response.incomplete", "response.failed"}
WORDED = {"message": ("output_text", "output_text"), "reasoning": ("reasoning_text", "reasoning_text")}
CALLS = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}


def events_of(body):
    """Return the events of a stream; each line `event:` says what its data says."""
    *blocks, rest = body.decode().split("\n\n")
    assert rest == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        assert data.startswith("data: ")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


class Checked:
    """Reads the events of one response and fails at the first that breaks a rule."""

    def __init__(self, events):
        self.done, self._open, self._parts, self._grown = [], None, None, ""
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        created, in_progress, *between, last = events
        assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
        assert last["type"] in ENDS
        for event in (created, in_progress):
            assert (event["response"]["status"], event["response"]["output"]) == ("in_progress", [])
        assert len({event["response"]["id"] for event in (created, in_progress, last)}) == 1
        for event in between:
            self._take(event)
        self.response = last["response"]
        assert self.response["status"] == last["type"].removeprefix("response.")
        if self.response["status"] != "failed":
            assert self._open is None, "an item has no end"
            assert self.response["output"] == self.done
            assert self.done, "a response says something"
        ids = [item["id"] for item in self.response["output"]]
        assert len(set(ids)) == len(ids)

    def _take(self, event):
        kind = event["type"].removeprefix("response.")
        assert event["output_index"] == len(self.done)
        if kind == "output_item.added":
            self._added(event["item"])
            return
        assert self._open is not None, f"{kind} of no item"
        if kind == "output_item.done":
            self._ended(event["item"])
            return
        assert event["item_id"] == self._open["id"]
        if self._open["type"] in WORDED:
            self._worded(kind, event)
        else:
            self._called(kind, event)

    def _added(self, item):
        assert self._open is None, "one item at a time"
        assert item["status"] == "in_progress"
        if item["type"] in WORDED:
            assert item["content"] == []
        else:
            assert item[CALLS[item["type"]][1]] == ""
        self._open, self._parts, self._grown, self._over = item, None, "", False

    def _worded(self, kind, event):
        delta, part = WORDED[self._open["type"]]
        assert event["content_index"] == 0
        if kind == "content_part.added":
            assert self._parts is None
            self._parts = []
            assert (event["part"]["type"], event["part"]["text"]) == (part, "")
        elif kind == f"{delta}.delta":
            assert self._parts == []
            assert not self._over
            self._grown += event["delta"]
            assert ("logprobs" in event) == (delta == "output_text")
        elif kind == f"{delta}.done":
            assert event["text"] == self._grown
            self._over = True
        else:
            assert kind == "content_part.done"
            assert self._over
            assert event["part"]["text"] == self._grown
            self._parts = [event["part"]]

    def _called(self, kind, event):
        name, field = CALLS[self._open["type"]]
        if kind == f"{name}.delta":
            assert not self._over
            self._grown += event["delta"]
        else:
            assert kind == f"{name}.done"
            assert event[field] == self._grown
            self._over = True

    def _ended(self, item):
        assert self._over
        grows = "content" if item["type"] in WORDED else CALLS[item["type"]][1]
        assert item["status"] in {"completed", "incomplete"}
        for name, value in self._open.items():
            if name not in {"status", grows}:
                assert item[name] == value
        assert item[grows] == (self._parts if grows == "content" else self._grown)
        self.done.append(item)
        self._open = None


class Codex:
    """Takes from a stream what Codex takes: items that are done, deltas of text, how it ended."""

    def __init__(self, body):
        self.items, self.text, self.usage, self.error = [], "", None, None
        completed = False
        for event in events_of(body):
            match event["type"]:
                case "response.output_item.done":
                    self.items.append(self._item(event["item"]))
                case "response.output_text.delta":
                    self.text += event["delta"]
                case "response.reasoning_text.delta":
                    assert isinstance(event["content_index"], int)
                case "response.completed":
                    completed = True
                    assert isinstance(event["response"]["id"], str)
                    self.usage = self._usage(event["response"]["usage"])
                case "response.incomplete":
                    self.error = f"incomplete: {event['response']['incomplete_details']['reason']}"
                case "response.failed":
                    self.error = "{code}: {message}".format(**event["response"]["error"])
        if not completed:
            self.error = self.error or "stream closed before response.completed"

    @staticmethod
    def _usage(usage):
        names = ("input_tokens", "output_tokens", "total_tokens")
        assert all(isinstance(usage[name], int) for name in names)
        assert isinstance(usage["input_tokens_details"]["cached_tokens"], int)
        assert isinstance(usage["output_tokens_details"]["reasoning_tokens"], int)
        return [usage[name] for name in names]

    @staticmethod
    def _item(item):
        """Return what is left of an item in its next request."""
        wants = {
            "message": ("role", "content"),
            "reasoning": ("summary", "content", "encrypted_content"),
            "function_call": ("name", "arguments", "call_id"),
            "custom_tool_call": ("call_id", "name", "input"),
        }[item["type"]]
        assert isinstance(item["id"], str)
        space = {"namespace": item["namespace"]} if "namespace" in item else {}
        return {"type": item["type"], **{name: item[name] for name in wants}, **space}
