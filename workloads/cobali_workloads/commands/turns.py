"""`cobali bench turns`: how much of each prompt of a conversation is cached, and of what could be."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx2
import typer
from rich.progress import track

from cobali_ray.errors import ConfigError
from cobali_ray.signals import ended_in_order
from cobali_workloads.commands.options import OUT, Model, Out, check_model, spell
from cobali_workloads.load.prompts import PromptMaker
from cobali_workloads.load.run import word_costs
from cobali_workloads.load.target import connect
from cobali_workloads.report.report import Report, Table, deliver
from cobali_workloads.servers.conversation import MeasuredConversation, MeasuredTurn
from cobali_workloads.servers.process import ServerProcess, cobali_server
from cobali_workloads.servers.processes import ENGINE, pids_of

N_SLOTS = 2
AFTER_S = 1.0
"""How long after an answer the engine is killed: in practice none dies in the very moment of its answer."""
OTHERS, KILL, RESTART = "others took all slots", "engine killed (kill -9)", "server restarted"
PREEMPTED, ANSWER_ID = "the last answer was preempted", "to-be-preempted"
CLASS = 1
"""Of the conversation, so that others, whose class is better, may preempt it."""
POLL_S, TIMES = 0.005, 10
"""Time between looks whether that answer has begun; how many times as long it is, so that others come."""
NOTE = (
    "Reusable: the tokens that a prompt begins with like an earlier prompt and its answer. The rest is new, "
    "or stands behind what is new, and no server has it. Where a template leaves out what stood before an "
    "earlier answer, such as an empty <think>, that answer is new once more."
)


def turns(
    model: Model = "builtin:synthetic-head",
    n_turns: Annotated[int, typer.Option("--turns", min=5, help="Turns of the conversation.")] = 10,
    system: Annotated[int, typer.Option(min=1, help="Tokens of the system prompt.")] = 200,
    message: Annotated[int, typer.Option(min=1, help="Tokens of each message.")] = 30,
    answer: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 30,
    out: Out = OUT,
) -> None:
    """Converse with a server that has a disk tier; take its slots, preempt an answer, kill and restart it."""
    check_model(model)
    events = {3: OTHERS, 5: KILL, 7: PREEMPTED, 9: RESTART}
    before = {n_turns * tenths // 10 + 1: event for tenths, event in events.items()}
    lengths = {"system": system, "message": message, "answer": answer}
    with tempfile.TemporaryDirectory() as folder, ended_in_order():
        measured = list(track(_converse(Path(folder), model, n_turns, before, **lengths), total=n_turns))
    command = spell("turns", model=model, turns=n_turns, **lengths)
    deliver(_report(command, measured, before), out)


def _converse(
    folder: Path, model: str, n_turns: int, before: dict[int, str], *, system: int, message: int, answer: int
) -> Iterator[MeasuredTurn]:
    values: dict[str, Any] = {
        "model": model, "n_slots": N_SLOTS, "disk_cache_dir": str(folder / "disk"), "log_level": "warning",
    }  # fmt: skip
    with httpx2.Client() as http, ExitStack() as stack:

        def start() -> ServerProcess:
            return stack.enter_context(cobali_server(values, folder, os.environ))

        server = start()
        maker = PromptMaker(word_costs(connect("server", server.url, endpoint="chat"))[0], seed=31)
        talk = MeasuredConversation(http, maker.text("system", system), n_answer=answer, priority=CLASS)

        def others(number: int) -> list[Callable[[], MeasuredTurn]]:
            """Return calls that ask something else, as long as the conversation is now."""
            texts = [maker.text(f"{number} other {i}", system + number * message) for i in range(2 * N_SLOTS)]
            talks = [MeasuredConversation(http, text, n_answer=answer) for text in texts]
            return [
                partial(other_talk.ask, server.url, maker.text("of another", message)) for other_talk in talks
            ]

        for number in range(1, n_turns + 1):
            event = before.get(number)
            if event == OTHERS:
                for ask_another in others(number):
                    ask_another()
            elif event == KILL:
                time.sleep(AFTER_S)
                (engine,) = pids_of(server.pid, ENGINE)
                os.kill(engine, signal.SIGKILL)
            elif event == RESTART:
                stack.close()
                server = start()
            text = maker.text(f"message {number}", message)
            if before.get(number + 1) == PREEMPTED:
                yield _interrupted(http, talk, server.url, text, others(number))
            else:
                yield talk.ask(server.url, text)


def _interrupted(
    http: httpx2.Client,
    talk: MeasuredConversation,
    url: str,
    text: str,
    others: list[Callable[[], MeasuredTurn]],
) -> MeasuredTurn:
    """Ask, and have others take all slots once the answer has begun. Raises ConfigError if none did."""
    n_before = _n_preempted(http, url)
    with ThreadPoolExecutor(1 + len(others)) as threads:
        answer = threads.submit(talk.ask, url, text, request_id=ANSWER_ID, times=TIMES)
        while not answer.done() and _state(http, url) != "generating":
            time.sleep(POLL_S)
        for other in [threads.submit(call) for call in others]:
            other.result()
    if _n_preempted(http, url) == n_before:
        raise ConfigError("--answer", "the answer was over before others came; make it longer")
    return answer.result()


def _state(http: httpx2.Client, url: str) -> str:
    """Return the state of the answer that is to be interrupted; empty while it is unknown."""
    return str(http.get(f"{url}/v1/requests/{ANSWER_ID}").json().get("state", ""))


def _n_preempted(http: httpx2.Client, url: str) -> int:
    lines = http.get(f"{url}/metrics").text.splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith("cobali_preemptions_total"))


def _report(command: str, measured: list[MeasuredTurn], before: dict[int, str]) -> Report:
    table = Table(
        "Of each prompt",
        ["turn", "tokens", "reusable", "cached", "cached / tokens", "cached / reusable", "before it"],
        note="Wanted: cached / tokens of at least 0.9 from the second turn on, if so much is reusable.",
    )
    for number, turn in enumerate(measured, 1):
        shares = [f"{turn.n_cached / n:.3f}" if n else "-" for n in (turn.n_prompt, turn.n_reusable)]
        counts = map(str, (number, turn.n_prompt, turn.n_reusable, turn.n_cached))
        table.rows.append((*counts, *shares, before.get(number, "")))
    later = measured[1:]
    all_cached, all_reusable = sum(turn.n_cached for turn in later), sum(turn.n_reusable for turn in later)
    return Report(
        name="turns",
        title="One conversation, turn by turn",
        command=command,
        config={"cached_of_reusable": all_cached / max(all_reusable, 1)},
        tables=[table],
        samples={"turns": [turn._asdict() for turn in measured]},
        notes=[NOTE],
    )
