"""Ask the held-out questions through the real server, sixteen at once, and count right answers by kind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openai import AsyncOpenAI

from cobali_ray.ports import free_port
from training.check import note
from training.corpus.build import drawn_set, plain_set, typed_set
from training.corpus.checks import passes
from training.corpus.example import KINDS, Example
from training.corpus.tools import stranger_set
from training.errors import TrainingError
from training.recipe import Workshop
from training.show import CONSOLE

AT_ONCE = 16
N_MOST = 200
LEAST_OVERALL, LEAST_OF_KIND, LEAST_ENDED = 0.90, 0.75, 0.98
_ROOT = Path(__file__).parents[1]
_START_S = 300.0
_STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Answered:
    """What was asked, what came back, and whether it ended by itself and is right."""

    example: Example
    text: str
    ended: bool

    @property
    def right(self) -> bool:
        """Say whether the checker takes the answer."""
        return passes(self.example.check, self.text)


def evaluate(workshop: Workshop) -> None:
    """Serve the shipped file, ask everything, write the table and the wrong answers.

    The targets are those of the held-out set, drawn and typed; a stranger's questions are only counted.

    Raises:
        TrainingError: the server does not start, or the model misses its targets.
    """
    with served(workshop.gguf("Q8_0"), workshop.folder / "server.log") as url:
        drawn, typed, plain, stranger = asyncio.run(
            _ask_each(url, (drawn_set(), typed_set(), plain_set(), stranger_set()))
        )
    answers = [*drawn, *typed]
    calls = [answered for answered in drawn if answered.example.check.name == "calls"]
    sets = {
        "drawn wordings": drawn,
        "typed wordings": typed,
        "tool calls": calls,
        "a stranger's": plain,
        "a stranger's tool calls": stranger,
    }
    table = as_table(answers, sets)
    workshop.table.write_text(table, encoding="utf-8")
    wrong = [answered for answered in (*answers, *plain, *stranger) if not answered.right]
    (workshop.folder / "wrong.txt").write_text("\n\n".join(map(_as_text, wrong)) + "\n", encoding="utf-8")
    shares = shares_right(answers)
    ended = sum(answered.ended for answered in answers) / len(answers)
    evaluation = {
        "n": len(answers),
        "right": {k: round(v, 4) for k, v in shares.items()},
        "drawn": round(shares_right(drawn)["all"], 4),
        "typed": round(shares_right(typed)["all"], 4),
        "calls": round(shares_right(calls)["all"], 4),
        "plain": sum(answered.right for answered in plain),
        "plain_calls": sum(answered.right for answered in stranger),
        "ended": round(ended, 4),
    }
    note(workshop.report, evaluation=evaluation)
    CONSOLE.print(table, highlight=False)
    missed = [
        kind for kind, share in shares.items() if share < (LEAST_OVERALL if kind == "all" else LEAST_OF_KIND)
    ]
    if missed or ended < LEAST_ENDED:
        raise TrainingError(f"targets missed: {', '.join(missed) or 'answers that end'}")


async def _ask_each(url: str, sets: Sequence[Sequence[Example]]) -> list[list[Answered]]:
    return [await ask_all(url, examples) for examples in sets]


async def ask_all(url: str, examples: Sequence[Example]) -> list[Answered]:
    """Ask every question, `AT_ONCE` of them together, greedily."""
    client, room = (
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0),
        asyncio.Semaphore(AT_ONCE),
    )

    async def ask(example: Example) -> Answered:
        async with room:
            answer = await client.chat.completions.create(
                model=model_id,
                messages=[turn.as_message() for turn in example.prompt],  # type: ignore[misc]
                temperature=0,
                max_tokens=N_MOST,
            )
        choice = answer.choices[0]
        return Answered(example, choice.message.content or "", choice.finish_reason == "stop")

    try:
        model_id = (await client.models.list()).data[0].id
        return await asyncio.gather(*(ask(example) for example in examples))
    finally:
        await client.close()


def shares_right(answers: Sequence[Answered]) -> dict[str, float]:
    """Return the share of right answers by kind, and over all of them as `all`."""
    total, right = Counter[str](), Counter[str]()
    for answered in answers:
        for kind in (answered.example.kind, "all"):
            total[kind] += 1
            right[kind] += answered.right
    return {kind: right[kind] / total[kind] for kind in (*KINDS, "all") if total[kind]}


def as_table(answers: Sequence[Answered], sets: Mapping[str, Sequence[Answered]]) -> str:
    """Write the counts as Markdown: by kind, all of them, and by set."""
    by_kind: dict[str, list[Answered]] = defaultdict(list)
    for answered in answers:
        by_kind[answered.example.kind].append(answered)
    rows = [(kind, by_kind[kind]) for kind in KINDS if by_kind[kind]]
    rows += [("**all**", list(answers)), *((name, list(some)) for name, some in sets.items())]
    lines = ["| kind | questions | right | share | ended by itself |", "|---|---|---|---|---|"]
    for kind, some in rows:
        right, ended = sum(a.right for a in some), sum(a.ended for a in some)
        lines.append(
            f"| {kind} | {len(some)} | {right} | {right / len(some):.1%} | {ended / len(some):.1%} |"
        )
    return "\n".join(lines) + "\n"


@contextmanager
def served(model: Path, log: Path) -> Iterator[str]:
    """Start `cobali serve` on a free port and stop it afterwards; give its URL once it is ready.

    Raises:
        TrainingError: it ended, or was not ready in time.
    """
    port = free_port()
    command = [
        str(Path(sys.executable).with_name("cobali")),
        "serve",
        "--model",
        str(model.resolve()),
        "--port",
        str(port),
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 - our own program
            command, stdout=out, stderr=subprocess.STDOUT, cwd=_ROOT, start_new_session=True
        )
        try:
            _wait_ready(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise TrainingError(f"the server ended with {process.returncode}; its log is {log}")
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5):  # noqa: S310 - loopback
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise TrainingError(f"the server was not ready in {_START_S:.0f} s; its log is {log}")


def _as_text(answered: Answered) -> str:
    example = answered.example
    head = f"# {example.kind}, {example.source}, {example.check.name}"
    prompt = [f"{turn.role}: {turn.text}" for turn in example.prompt]
    return "\n".join([head, *prompt, f"wanted: {example.answer}", f"got: {answered.text}"])
