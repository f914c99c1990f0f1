"""Run the tests of client libraries, each library in an environment of its own under .clients.

They are large, and no two agree on the version of `openai`. What each environment holds is pinned in
tests/clients/requirements. Needs .venv as `make install-dev` makes it: the server runs there.

Usage: python3 tools/clients.py [NAME ...] [--pin] [pytest's options]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
UV = ROOT / ".venv" / "bin" / "uv"
ENVIRONMENTS = ROOT / ".clients"
TESTS = ROOT / "tests" / "clients"
LIBRARIES = {
    "anthropic": "anthropic",
    "instructor": "instructor",
    "langchain_openai": "langchain-openai",
    "litellm": "litellm[mcp]",  # without it, completion() with tools finds a package missing
    "llama_index": "llama-index-llms-openai-like",
    "lm_eval": "lm-eval[api]",
    "ollama": "ollama",
    "openai": "openai",
    "openai_agents": "openai-agents",
    "pydantic_ai": "pydantic-ai-slim[openai]",
}
"""The name of an environment, which tests/clients/test_NAME.py needs -> what is wanted in it."""
RUNNERS = ("anyio", "pytest", "pytest-timeout")


def main(arguments: list[str]) -> int:
    """Run the tests of the libraries that are named, or of all; return the exit code."""
    arguments = [spelled if (spelled := one.replace("-", "_")) in LIBRARIES else one for one in arguments]
    names = [one for one in arguments if one in LIBRARIES] or list(LIBRARIES)
    options = [one for one in arguments if one not in {*LIBRARIES, "--pin"}]
    codes = {}
    for name in names:
        if "--pin" in arguments:
            pin(name)
        python = install(name)
        print(f"-- {name}", flush=True)
        command = [python, "-m", "pytest", TESTS / f"test_{name}.py", *options]
        codes[name] = subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode
    failed = [name for name, code in codes.items() if code]
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


def pin(name: str) -> None:
    """Choose the newest versions that go together."""
    wanted = "\n".join((LIBRARIES[name], *RUNNERS))
    options = ["--quiet", "--no-annotate", "--no-header", "--upgrade", "--output-file", requirements(name)]
    subprocess.run(
        [UV, "pip", "compile", *options, "-"], input=wanted, text=True, check=True, stdout=subprocess.DEVNULL
    )


def install(name: str) -> Path:
    """Make an environment what its requirements say; return its interpreter."""
    python = ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        subprocess.run([UV, "venv", "--quiet", "--python", PYTHON, ENVIRONMENTS / name], check=True)
    subprocess.run([UV, "pip", "sync", "--quiet", "--python", python, requirements(name)], check=True)
    return python


def requirements(name: str) -> Path:
    """Return the file that pins an environment."""
    return TESTS / "requirements" / f"{name}.txt"


def environment() -> dict[str, str]:
    """Return the environment variables of a run: no library reports home."""
    quiet = {
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }
    return dict(os.environ) | quiet


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
