"""The command line itself: cheap where nothing runs, one line where something is wrong."""

import subprocess
import sys

import pytest

HEAVY = ("numpy", "ray", "matplotlib", "llama_cpp", "openai", "fastapi", "structlog", "httpx2")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(["--help"], 0, "Measure, and write a report.", id="help"),
        pytest.param(["bench", "--help"], 0, "Time the single steps of a tick", id="help-of-a-group"),
        pytest.param(["serv"], 2, "Did you mean 'serve'?", id="typo"),
        pytest.param(["bench", "chat"], 2, "Did you mean 'chats'?", id="typo-in-a-group"),
    ],
)
def test_help_and_typos_import_nothing_heavy(words, code, said):
    script = (
        "import sys\nfrom cobali_ray.cli import main\n"
        f"try:\n    sys.argv = ['cobali', *{words!r}]\n    main()\n"
        f"finally:\n    print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    environ = {"COLUMNS": "120", "PATH": ""}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environ, check=False
    )
    assert run.returncode == code, run.stderr
    assert said in run.stdout + run.stderr
    assert "heavy: []" in run.stdout
