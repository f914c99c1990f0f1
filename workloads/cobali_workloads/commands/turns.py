"""`cobali bench turns`: how much of each prompt of a conversation is there already, and of what could be."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from cobali_ray.signals import ended_in_order
from cobali_workloads.commands.options import OUT, Model, Out, check_model, spell
from cobali_workloads.load.prompts import PromptMaker
from cobali_workloads.load.run import word_costs
from cobali_workloads.load.target import connect
from cobali_workloads.report.report import Report, Table, deliver
from cobali_workloads.servers.conversation import AskedTurn, MeasuredConversation
from cobali_workloads.servers.process import ServerProcess, cobali_server
from cobali_workloads.servers.processes import ENGINE, pids_of

N_SLOTS = 2
AFTER_S = 1.0
"""How long after an answer the engine is killed: nobody kills one in the moment in which it has answered."""
OTHERS, KILL, RESTART = "others took all slots", "engine killed (kill -9)", "server restarted"
NOTE = (
    "Reusable: the tokens that a prompt begins with like an earlier prompt and its answer. The rest is new, "
    "or stands behind what is new, and no server has it. Where a template leaves out what stood before an "
    "earlier answer, such as an empty <think>, that answer is new once more."
)


def turns(
    model: Model = "builtin:synthetic-head",
    n_turns: Annotated[int, typer.Option("--turns", min=4, help="Turns of the conversation.")] = 10,
    system: Annotated[int, typer.Option(min=1, help="Tokens of the system prompt.")] = 200,
    message: Annotated[int, typer.Option(min=1, help="Tokens of each message.")] = 30,
    answer: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 30,
    out: Out = OUT,
) -> None:
    """Converse with a server that has a disk tier; take its slots, kill its engine and restart it between."""
    check_model(model)
    before = {n_turns * 3 // 10 + 1: OTHERS, n_turns * 5 // 10 + 1: KILL, n_turns * 8 // 10 + 1: RESTART}
    lengths = {"system": system, "message": message, "answer": answer}
    with tempfile.TemporaryDirectory() as folder, ended_in_order():
        asked = list(track(_converse(Path(folder), model, n_turns, before, **lengths), total=n_turns))
    command = spell("turns", model=model, turns=n_turns, **lengths)
    deliver(_report(command, asked, before), out)


def _converse(
    folder: Path, model: str, n_turns: int, before: dict[int, str], *, system: int, message: int, answer: int
) -> Iterator[AskedTurn]:
    values: dict[str, Any] = {
        "model": model, "n_slots": N_SLOTS, "disk_cache_dir": str(folder / "disk"), "log_level": "warning",
    }  # fmt: skip
    with ExitStack() as stack:

        def start() -> ServerProcess:
            return stack.enter_context(cobali_server(values, folder, os.environ))

        server = start()
        maker = PromptMaker(word_costs(connect("server", server.url, endpoint="chat"))[0], seed=31)
        talk = MeasuredConversation(maker.text("system", system), n_answer=answer)
        for number in range(1, n_turns + 1):
            event = before.get(number)
            if event == OTHERS:
                for i in range(2 * N_SLOTS):
                    other = MeasuredConversation(
                        maker.text(f"other {i}", system + number * message), n_answer=answer
                    )
                    other.ask(server.url, maker.text(f"of other {i}", message))
            elif event == KILL:
                time.sleep(AFTER_S)
                (engine,) = pids_of(server.pid, ENGINE)
                os.kill(engine, signal.SIGKILL)
            elif event == RESTART:
                stack.close()
                server = start()
            yield talk.ask(server.url, maker.text(f"message {number}", message))


def _report(command: str, asked: list[AskedTurn], before: dict[int, str]) -> Report:
    table = Table(
        "Of each prompt",
        ["turn", "tokens", "reusable", "cached", "cached / tokens", "cached / reusable", "before it"],
        note="Wanted: cached / tokens of at least 0.9 from the second turn on, if so much is reusable.",
    )
    for number, one in enumerate(asked, 1):
        shares = [f"{one.n_cached / n:.3f}" if n else "-" for n in (one.n_prompt, one.n_reusable)]
        counts = map(str, (number, one.n_prompt, one.n_reusable, one.n_cached))
        table.rows.append((*counts, *shares, before.get(number, "")))
    later = asked[1:]
    all_cached, all_reusable = sum(one.n_cached for one in later), sum(one.n_reusable for one in later)
    return Report(
        name="turns",
        title="One conversation, turn by turn",
        command=command,
        config={"cached_of_reusable": all_cached / max(all_reusable, 1)},
        tables=[table],
        samples={"turns": [one._asdict() for one in asked]},
        notes=[NOTE],
    )
