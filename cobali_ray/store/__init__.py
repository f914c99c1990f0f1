"""What outlives a connection: files, batches, responses, conversations, the page's chats, in one SQLite file.

`files.py`, `batches.py`, `responses.py`, `conversations.py`, `chats.py` and `streams.py` are functions over a
connection, which `Store` calls in its thread, each in a transaction. What is decided without SQL stands apart
and is pure: how a batch goes on (`states.py`), what a line of JSONL must be (`lines.py`) and which line goes
first (`order.py`). Knows neither HTTP nor engines.
"""
