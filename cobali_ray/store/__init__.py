"""What outlives a connection: files, batches, responses, conversations, in one SQLite file below `data_dir`.

`files.py`, `batches.py`, `responses.py` and `conversations.py` are functions over a connection, which `Store`
calls in its thread, each in a transaction. What is decided without SQL stands apart and is pure: how a batch
goes on (`states.py`), what a line of JSONL must be (`lines.py`) and which line goes first (`order.py`). Knows
neither HTTP nor engines.
"""
