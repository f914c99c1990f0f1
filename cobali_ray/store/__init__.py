"""What outlives a connection: files, batches, responses, conversations, chats of the page.

`files.py`, `batches.py`, `responses.py`, `conversations.py`, `chats.py` and `streams.py` are functions over a
connection, which `Store` calls in its thread, each in a transaction. What SQLite and PostgreSQL do not have
in common is in `sqlite.py` and `postgres.py`. What is decided without SQL stands apart and is pure: how a
batch goes on (`states.py`), what a line of JSONL must be (`lines.py`) and which line goes first (`order.py`).
Knows neither HTTP nor engines.
"""
