"""Run the tests of client libraries and programs, each in an environment of its own under .clients.

They are large, and no two agree on the version of `openai`. What each environment holds is pinned in
tests/clients/requirements. Needs .venv as `make install-dev` makes it: the server runs there; and npm with
Node.js for the programs that come from there.

Usage: python3 tools/clients.py [NAME ...] [--pin] [pytest's options]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
UV = ROOT / ".venv" / "bin" / "uv"
ENVIRONMENTS = ROOT / ".clients"
TESTS = ROOT / "tests" / "clients"
LIBRARIES = {
    "aider": "aider-chat",
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
"""The name of an environment, which tests/clients/test_NAME.py needs -> what is wanted in it, from PyPI."""
PROGRAMS = {
    "claude_code": ("@anthropic-ai/claude-code@latest",),
    "codex": ("@openai/codex@latest",),
    "continue": ("@continuedev/cli@latest",),
    "opencode": ("opencode-ai@latest",),
    "qwen_code": ("@qwen-code/qwen-code@latest", "node@22"),  # it does not start on an older Node.js
}
"""The same from npm, which without `@latest` takes the newest that suits the Node.js it finds. These and
aider have their tests in tests/clients/test_programs.py."""
NAMES = (*LIBRARIES, *PROGRAMS)
RUNNERS = ("anyio", "pytest", "pytest-timeout")


def main(arguments: list[str]) -> int:
    """Run the tests of those that are named, or of all; return the exit code."""
    arguments = [
        spelled if (spelled := argument.replace("-", "_")) in NAMES else argument for argument in arguments
    ]
    names = [argument for argument in arguments if argument in NAMES] or list(NAMES)
    options = [argument for argument in arguments if argument not in {*NAMES, "--pin"}]
    if shutil.which("npm") is None and not PROGRAMS.keys().isdisjoint(names):
        print(f"npm is missing: without it name others than {', '.join(PROGRAMS)}")
        return 1
    codes = {}
    for name in names:
        if "--pin" in arguments:
            (pin_program if name in PROGRAMS else pin)(name)
        python = install_program(name) if name in PROGRAMS else install(name)
        print(f"-- {name}", flush=True)
        command = [python, "-m", "pytest", *tests(name), *options]
        codes[name] = subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode
    failed = [name for name, code in codes.items() if code]
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


def tests(name: str) -> list[str | Path]:
    """Return what pytest is to run."""
    own = TESTS / f"test_{name}.py"
    return [own] if own.exists() else [TESTS / "test_programs.py", "--program", name]


def pin(name: str) -> None:
    """Choose the newest versions that go together."""
    packages = "\n".join((LIBRARIES[name], *RUNNERS))
    options = ["--quiet", "--no-annotate", "--no-header", "--upgrade", "--output-file", requirements(name)]
    subprocess.run(
        [UV, "pip", "compile", *options, "-"],
        input=packages,
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def pin_program(name: str) -> None:
    """Choose the newest versions that go together, and let them run what they install themselves with."""
    folder = package(name).parent
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    npm(folder, "--package-lock-only", "--save-exact", "--omit-lockfile-registry-resolved", *PROGRAMS[name])
    pinned = json.loads(package(name).read_text())
    pinned["allowScripts"] = dict.fromkeys(pinned["dependencies"], True)
    package(name).write_text(json.dumps(pinned, indent=2) + "\n")


def install(name: str) -> Path:
    """Make an environment what its requirements say; return its interpreter."""
    python = ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        subprocess.run([UV, "venv", "--quiet", "--python", PYTHON, ENVIRONMENTS / name], check=True)
    subprocess.run([UV, "pip", "sync", "--quiet", "--python", python, requirements(name)], check=True)
    return python


def install_program(name: str) -> Path:
    """Make a folder what its package-lock.json says; return the interpreter of its tests."""
    shutil.copytree(package(name).parent, ENVIRONMENTS / name, dirs_exist_ok=True)
    npm(ENVIRONMENTS / name)
    return PYTHON


def npm(folder: Path, *options: str) -> None:
    """Run `npm install` in a folder."""
    quiet = ("--no-audit", "--no-fund", "--loglevel=error")
    command = ["npm", "install", *quiet, "--prefix", folder, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def requirements(name: str) -> Path:
    """Return the file that pins an environment."""
    return TESTS / "requirements" / f"{name}.txt"


def package(name: str) -> Path:
    """Return the file that pins a program from npm, beside its package-lock.json."""
    return TESTS / "requirements" / name / "package.json"


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
