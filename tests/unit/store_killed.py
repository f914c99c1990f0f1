"""A program: works on batches, or on responses, in a process that is killed again and again.

It says what was acknowledged.

python store_killed.py FOLDER|URL N_KILLS SEED batches|responses
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

from cobali_ray.store import batches, conversations, files, responses
from cobali_ray.store.batches import AnsweredLine, NewBatch
from cobali_ray.store.database import Store
from cobali_ray.store.files import Piece, StoreQuota
from cobali_ray.store.lines import OPENAI, Answer, parse_line
from cobali_ray.store.responses import EventRow, NewResponse, ResponseOrigin
from cobali_ray.store.states import BatchStatus

QUOTA = StoreQuota(1 << 30, 10_000, kept_until_s=1000)
N_LINES, N_EVENTS = 40, 9
EVENT = b"event: x\ndata: {}\n\n"
STEPS = {BatchStatus.VALIDATING: batches.start, BatchStatus.FINALIZING: batches.finish}


def piece(n):
    asked = {"custom_id": f"r{n}", "method": "POST", "url": "/v1/completions", "body": {"prompt": f"{n}"}}
    data = json.dumps(asked).encode()
    return Piece(n, data + b"\n", parse_line(n, data))


def take_lock(db):
    return db.take_lock()


def create(store):
    """Upload a file in two transactions, and make a batch of it."""
    file_id = store.now(files.begin, "", files.INPUT, "", 0, QUOTA)
    for first in (1, 1 + N_LINES // 2):
        pieces = [piece(n) for n in range(first, first + N_LINES // 2)]
        store.now(files.append, file_id, pieces, 0, QUOTA)
    store.now(files.complete, file_id, "in.jsonl", 1000)
    new = NewBatch("", "", OPENAI, "/v1/completions", file_id)
    return store.now(batches.create, new, 0, QUOTA).id


def work(place, rng, say):
    """Answer lines a few at a time, some of them twice, and make a batch whenever there is none."""
    store = Store(place)
    while True:
        found = store.now(batches.unfinished)
        if not found:
            say({"batch": create(store)})
        for batch in found:
            if batch.status in STEPS:
                store.now(STEPS[batch.status], batch, 0)
                say({})
                continue
            lines = store.now(batches.pending, batch, 0, rng.randint(1, 9))
            answered = [
                AnsweredLine(
                    line.turn,
                    line.custom_id,
                    Answer(rng.choice([200, 400]), b"%d" % i, rng.randbytes(4).hex()),
                )
                for i, line in enumerate(lines)
            ]
            store.now(batches.answer, batch.id, answered, 0)
            say({"answers": [(batch.id, one.custom_id, one.answer.request_id) for one in answered]})
            again = [one._replace(answer=Answer(200, b"0", "again")) for one in answered]
            store.now(batches.answer, batch.id, again, 0)


def chat(store):
    """Begin the conversation that all responses are in, or return its id."""
    found = store.now(lambda db: db.execute("SELECT id FROM conversations").fetchone())
    if found is not None:
        return found["id"]
    return store.now(conversations.create, "", {}, [], 0, QUOTA).id


def converse(place, rng, say):
    """Compute responses a few events at a time, each as far as the store says, and end some of them twice."""
    store = Store(place)
    while True:
        waiting = store.now(responses.waiting)
        if not waiting:
            items = json.dumps([{"id": f"i{rng.random()}"}]).encode()
            new = NewResponse(f"resp_{rng.random()}", "", "", ResponseOrigin("", chat(store)), 0, items)
            body = {"id": new.id, "status": "queued", "output": [], "background": True}
            store.now(responses.queue, new, json.dumps(body).encode(), b"{}", EVENT, QUOTA)
            say({"queued": new.id})
        for response_id, *_ in waiting:
            one = store.now(responses.begin, response_id)
            say({})
            for n in range(one.rows[-1].n + 1, N_EVENTS):
                store.now(responses.append, [EventRow(one.id, n, EVENT, b"%d" % n)])
                say({"event": [one.id, n]})
            output = [{"id": f"o{one.id}"}]
            for _ in range(rng.randint(1, 2)):
                ended = {"id": one.id, "status": "completed", "output": output, "background": True}
                store.now(responses.end, one.id, ended)
            say({"ended": one.id})


WORK = {"batches": work, "responses": converse}


def main(place, n_kills, seed, what):
    rng = random.Random(seed)
    for _ in range(n_kills):
        reader, writer = os.pipe()
        child_seed, n_words = rng.random(), rng.randint(0, 12)
        child = os.fork()
        if not child:
            with os.fdopen(writer, "w", buffering=1) as out:
                WORK[what](place, random.Random(child_seed), lambda word: print(json.dumps(word), file=out))
        os.close(writer)
        with os.fdopen(reader) as told:
            words = [told.readline() for _ in range(n_words)]
            for _ in range(rng.randint(0, 20_000)):  # somewhere in the next transaction
                pass
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            words += told.readlines()
        sys.stdout.write("".join(word for word in words if word.endswith("\n")))


if __name__ == "__main__":
    place = sys.argv[1]
    if "://" in place:
        import psycopg  # noqa: F401 here, and not in each child
    main(place if "://" in place else Path(place), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
