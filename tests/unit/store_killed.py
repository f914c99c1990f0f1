"""A program: works on batches in a process that is killed again and again, and says what was acknowledged.

python store_killed.py FOLDER N_KILLS SEED
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

from cobali_ray.store import batches, files
from cobali_ray.store.batches import AnsweredLine, NewBatch
from cobali_ray.store.database import Store
from cobali_ray.store.files import Piece, StoreQuota
from cobali_ray.store.lines import OPENAI, Answer, parse_line
from cobali_ray.store.states import BatchStatus

QUOTA = StoreQuota(1 << 30, 10_000)
N_LINES = 40
STEPS = {BatchStatus.VALIDATING: batches.start, BatchStatus.FINALIZING: batches.finish}


def piece(n):
    asked = {"custom_id": f"r{n}", "method": "POST", "url": "/v1/completions", "body": {"prompt": f"{n}"}}
    data = json.dumps(asked).encode()
    return Piece(n, data + b"\n", parse_line(n, data))


def create(store):
    """Upload a file in two transactions, and make a batch of it."""
    file_id = store.now(files.begin, "", files.INPUT, "", 0, QUOTA)
    for first in (1, 1 + N_LINES // 2):
        pieces = [piece(n) for n in range(first, first + N_LINES // 2)]
        store.now(files.append, file_id, pieces, 0, QUOTA)
    store.now(files.complete, file_id, "in.jsonl", 1000)
    new = NewBatch("", "", OPENAI, "/v1/completions", file_id)
    return store.now(batches.create, new, now_s=0, kept_until_s=1000, quota=QUOTA).id


def work(folder, rng, say):
    """Answer lines a few at a time, some of them twice, and make a batch whenever there is none."""
    store = Store(folder)
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


def main(folder, n_kills, seed):
    rng = random.Random(seed)
    for _ in range(n_kills):
        reader, writer = os.pipe()
        child_seed, n_words = rng.random(), rng.randint(0, 12)
        child = os.fork()
        if not child:
            with os.fdopen(writer, "w", buffering=1) as out:
                work(folder, random.Random(child_seed), lambda word: print(json.dumps(word), file=out))
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
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
