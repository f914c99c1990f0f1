"""The tables of the store, in SQLite's words."""

from typing import Final

_FILES_AND_BATCHES: Final = """
CREATE TABLE files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,          -- the salt of a key; who has another key does not see it
    purpose TEXT NOT NULL,
    name TEXT NOT NULL,
    bytes INTEGER NOT NULL DEFAULT 0,
    created_s INTEGER NOT NULL,
    expires_s INTEGER NOT NULL,
    complete INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX files_of ON files (owner, seq);
CREATE TABLE pieces (             -- a file is its pieces, in order: of a batch one for each line
    file_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (file_id, n)
) STRICT;
CREATE TABLE lines (              -- what is known of the lines of a file that a batch may be made of
    file_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    model TEXT NOT NULL,
    order_key BLOB NOT NULL,
    PRIMARY KEY (file_id, n)
) STRICT, WITHOUT ROWID;
CREATE TABLE batches (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    tenant TEXT NOT NULL,         -- the name of the key, by which its terms are known
    format TEXT NOT NULL,         -- openai, anthropic
    endpoint TEXT NOT NULL,
    status TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    output_file_id TEXT NOT NULL,
    error_file_id TEXT NOT NULL,  -- the same where answers and errors are in one file
    created_s INTEGER NOT NULL,
    expires_s INTEGER NOT NULL,   -- until then it is to be answered
    kept_until_s INTEGER NOT NULL,
    times TEXT NOT NULL DEFAULT '{}',
    metadata TEXT NOT NULL,
    errors TEXT NOT NULL DEFAULT '[]',
    n_total INTEGER NOT NULL DEFAULT 0,
    n_completed INTEGER NOT NULL DEFAULT 0,
    n_failed INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX batches_of ON batches (owner, seq);
CREATE INDEX batches_open ON batches (status);
CREATE TABLE pending (            -- lines that have no answer yet, by their turn
    batch_id TEXT NOT NULL,
    turn INTEGER NOT NULL,
    n INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    model TEXT NOT NULL,
    PRIMARY KEY (batch_id, turn)
) STRICT, WITHOUT ROWID;
"""
_RESPONSES: Final = """
CREATE TABLE responses (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    tenant TEXT NOT NULL,
    status TEXT NOT NULL,
    created_s INTEGER NOT NULL,
    kept_until_s INTEGER NOT NULL,
    previous_id TEXT NOT NULL,    -- what it goes on from: "" or a response, or
    conversation_id TEXT NOT NULL,
    conversation_n INTEGER NOT NULL,
    items BLOB NOT NULL,
    body BLOB NOT NULL,
    request BLOB,                 -- what is yet to be computed
    streams INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    n_begun INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX responses_of ON responses (owner, kept_until_s);
CREATE INDEX responses_open ON responses (status) WHERE status IN ('queued', 'in_progress');
CREATE TABLE response_events (
    response_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    data BLOB NOT NULL,
    deltas BLOB NOT NULL,
    PRIMARY KEY (response_id, n)
) STRICT, WITHOUT ROWID;
CREATE TABLE conversations (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    created_s INTEGER NOT NULL,
    kept_until_s INTEGER NOT NULL,
    metadata TEXT NOT NULL,
    bytes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX conversations_of ON conversations (owner, seq);
CREATE TABLE items (
    conversation_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    id TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (conversation_id, n),
    UNIQUE (id, conversation_id)
) STRICT;
"""
_CHATS: Final = """
CREATE TABLE chats (
    version INTEGER PRIMARY KEY AUTOINCREMENT,  -- another one with each change
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    kept_until_s INTEGER NOT NULL,
    summary TEXT NOT NULL,
    data TEXT,                    -- NULL: it was deleted
    bytes INTEGER NOT NULL,
    UNIQUE (owner, id)
) STRICT;
CREATE INDEX chats_of ON chats (owner, version);
CREATE TABLE streams (
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    kept_until_s INTEGER NOT NULL,
    data BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (owner, id)
) STRICT;
"""
VERSIONS: Final = (_FILES_AND_BATCHES, _RESPONSES, _CHATS)
"""What each version adds; a database of more versions is refused."""
