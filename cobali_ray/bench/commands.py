"""`cobali bench ...`: one line per benchmark."""

from __future__ import annotations

import typer

from cobali_ray.bench import (
    cmd_chats,
    cmd_gaps,
    cmd_micro,
    cmd_modes,
    cmd_overlap,
    cmd_pace,
    cmd_peers,
    cmd_prefill,
    cmd_restart,
    cmd_select,
    cmd_serve,
    cmd_threads,
)

app = typer.Typer(no_args_is_help=True, help="Measure, and write a report.", pretty_exceptions_enable=False)
app.command("modes")(cmd_modes.modes)
app.command("prefill")(cmd_prefill.prefill)
app.command("overlap")(cmd_overlap.overlap)
app.command("pace")(cmd_pace.pace)
app.command("micro")(cmd_micro.micro)
app.command("chats")(cmd_chats.chats)
app.command("gaps")(cmd_gaps.gaps)
app.command("restart")(cmd_restart.restart)
app.command("serve")(cmd_serve.serve)
app.command("peers")(cmd_peers.peers)
app.command("select")(cmd_select.select)
app.command("threads")(cmd_threads.threads)
