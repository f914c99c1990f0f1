"""Coding agents, as real programs, end a conversation with calls of their own tools."""

import json
from dataclasses import dataclass, field

import pytest
from programs import Desk, Outside

HELLO, BYE = "Hello\n", "Good-bye"


@dataclass(frozen=True)
class Program:
    """How a program is set up and started, and what its tools are called."""

    recipe: str
    command: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    calls: tuple[tuple[str, dict], ...] = ()
    """They write HELLO into hello.txt, and print BYE."""
    says: str = ""
    """The same in words, where words are the tool."""
    by_input: bool = False


PROGRAMS = {
    "aider": Program(
        recipe="aider",
        command=("aider", "--yes-always", "--no-git", "--message"),
        files={"yaml": ".aider.conf.yml", "json": ".aider.model.metadata.json"},
        says=f"{BYE}\n\nhello.txt\n```\n<<<<<<< SEARCH\n=======\n{HELLO}>>>>>>> REPLACE\n```\n",
    ),
    "claude_code": Program(
        recipe="claude-code",
        command=("claude", "--allowedTools=Bash,Write", "-p"),
        calls=(
            ("Write", {"file_path": "WORK/hello.txt", "content": HELLO}),
            ("Bash", {"command": f"echo {BYE}"}),
        ),
    ),
    "codex": Program(
        recipe="codex",
        command=("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        files={"toml": ".codex/config.toml"},
        calls=(
            ("exec_command", {"cmd": "echo Hello > hello.txt"}),
            ("exec_command", {"cmd": f"echo {BYE}"}),
        ),
    ),
    "continue": Program(
        recipe="continue",
        command=("cn", "--auto", "-p"),
        files={"yaml": ".continue/config.yaml"},
        calls=(
            ("Write", {"filepath": "WORK/hello.txt", "content": HELLO}),
            ("Bash", {"command": f"echo {BYE}"}),
        ),
    ),
    "opencode": Program(
        recipe="opencode",
        command=("opencode", "run"),
        files={"json": ".config/opencode/opencode.json"},
        calls=(
            ("write", {"content": HELLO, "filePath": "WORK/hello.txt"}),  # in its schema's order
            ("bash", {"command": f"echo {BYE}"}),
        ),
        by_input=True,  # it puts what has quotes into more quotes
    ),
    "qwen_code": Program(
        recipe="qwen-code",
        command=("qwen", "--yolo", "-p"),
        files={"json": ".qwen/settings.json"},
        calls=(
            ("write_file", {"file_path": "WORK/hello.txt", "content": HELLO}),
            ("run_shell_command", {"command": f"echo {BYE}"}),
        ),
    ),
}


def pytest_generate_tests(metafunc):
    chosen = metafunc.config.getoption("--program")
    metafunc.parametrize("name", [chosen] if chosen else PROGRAMS)


@pytest.fixture
def desk(lenient_server, tmp_path):
    with Outside() as outside:
        yield Desk(lenient_server, tmp_path, outside)
        outside.shutdown()


@pytest.fixture
def ask(desk, name):
    """Ask a program something, and return what it prints."""
    program = PROGRAMS[name]
    desk.follow(program.recipe, program.files)

    def ask(question):
        if program.by_input:
            return desk.run(name, program.command, question)
        return desk.run(name, (*program.command, question), "")

    return ask


@pytest.mark.timeout(300)
def test_it_answers(ask):
    assert ask("Hello!").strip()


@pytest.mark.scripted
@pytest.mark.timeout(300)
def test_it_calls_its_tools(ask, desk, name):
    program = PROGRAMS[name]
    lines = [f"Call {tool} with {json.dumps(arguments)}." for tool, arguments in program.calls]
    if program.says:
        lines.append(f"Say {json.dumps(program.says)}.")
    told = ask("\n".join(["Think first.", *lines]).replace("WORK", str(desk.work)))
    answer = told if program.says else told.partition("The tools say: ")[2]
    assert BYE in answer, told
    assert {one.name: one.read_text() for one in desk.work.glob("*.txt")} == {"hello.txt": HELLO}, told
