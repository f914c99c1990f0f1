"""What `cobali serve` says while it starts."""

import io
import re

import pytest
from rich.console import Console

from cobali_ray.actors.steps import Steps


@pytest.mark.parametrize("terminal", [False, True])
def test_each_step_is_a_line_with_its_seconds(terminal):
    now, out = [5.0], io.StringIO()
    steps = Steps(Console(file=out, force_terminal=terminal, width=60), lambda: now[0])
    with steps.step("starting Ray"):
        now[0] += 2.5
    with pytest.raises(ZeroDivisionError), steps.step("starting Serve"):
        now[0] += 1 / 0
    now[0] += 1
    steps.ready()
    said = re.sub(r"\x1b\[[0-9?]*[A-Za-z]", "", out.getvalue())  # where the cursor goes
    lines = [line.strip() for line in said.splitlines() if line.strip().endswith(" s")]
    assert lines[-2:] == ["starting Ray               2.5 s", "ready after                3.5 s"]
    assert terminal == ("starting Serve ..." in out.getvalue())
    assert terminal or len(out.getvalue().splitlines()) == 2, "plain lines"
