"""Every promise of the documents that a machine can check."""

from __future__ import annotations

import ast
import json
import re
import shlex
import textwrap
import tomllib
from datetime import date
from functools import cache
from itertools import chain, pairwise

import pytest
import typer
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sources import ROOT, SERVER, trees
from telemetry_records import exposition
from typer.testing import CliRunner

from cobali_ray import errors
from cobali_ray.actors.front import ERRORS as FRONT_ERRORS
from cobali_ray.api.app import build_api
from cobali_ray.api.body.constraint import constraint_of
from cobali_ray.api.body.reading import parse
from cobali_ray.api.body.schema import ChatBody, GenerationBody
from cobali_ray.api.door.faults import type_of
from cobali_ray.api.engines.fleet import Fleet
from cobali_ray.backend.grammar import check
from cobali_ray.cli import app as cli
from cobali_ray.errors import RefusedError
from cobali_ray.models.reference import parse_reference
from cobali_ray.settings import ApiSettings, EngineSettings, read_settings
from cobali_ray.telemetry.names import OUTCOMES, REFUSALS
from cobali_workloads.commands import NAMES
from tools import reference, rooms
from tools.clients import LIBRARIES as CLIENTS
from tools.clients import PROGRAMS

DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "DECISIONS.md", "CONTRIBUTING.md", "SECURITY.md")
COMMANDS = "docs/commands.md"
PLACES = ("", "cobali_ray", "workloads/cobali_workloads")
"""Where the paths in documents begin."""
FILE_NAME = re.compile(r"[\w./-]+\.(?:py|md|yaml|toml|json|txt)|[\w./-]+/")
NOT_OURS = {"/openapi.json", "site/"}  # a route, and what `make docs` makes
PLACEHOLDERS = re.compile(r"\b(TODO|FIXME|TBD|XXX|WIP|lorem|placeholder|coming soon)\b", re.IGNORECASE)
DECISION_TITLE = re.compile(
    r"(?P<number>\d+)\. .+ \((?P<date>\d{4}-\d\d-\d\d)(?:, (?:in part )?superseded by (?P<by>\d+))?\)"
)
DECISION_LINES = ("Context", "Decision", "Why", "Consequence", "Revisit")


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def rows(text):
    """Return the cells of all table rows that are neither heads nor rules."""
    lines = [line.strip() for line in text.splitlines()]
    tables = [i for i, line in enumerate(lines) if re.fullmatch(r"\|[-|]+\|", line)]
    heads = {i - 1 for i in tables} | set(tables)
    cells = [
        line.strip("|").split(" | ") for i, line in enumerate(lines) if line[:1] == "|" and i not in heads
    ]
    return [[cell.strip() for cell in row] for row in cells]


def ticked(text):
    return re.findall(r"`([^`\n]+)`", text)


def blocks(kind, *documents):
    text = "\n".join(map(read, documents or ("README.md",)))
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def plain(names):
    return sorted(name.strip("`") for name in names)


def test_every_setting_is_listed_with_its_default():
    listed = {row[0].strip("`"): yaml.safe_load(row[1].strip("`")) for row in rows(read("docs/settings.md"))}
    real = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in EngineSettings().values().items()
    }
    assert listed == real


def test_every_metric_is_listed_and_exported():
    exported = {
        f"{family.name}_total" if family.type == "counter" else family.name: family
        for family in text_string_to_metric_families(exposition())
        if family.name.startswith("cobali_")
    }
    listed = {}
    for name, kind, _ in rows(read("docs/metrics.md")):
        family, _, labels = name.strip("`").rstrip("}").partition("{")
        listed[family] = (kind, set(labels.split(",")) - {""})
    assert sorted(listed) == sorted(exported)
    for name, (kind, labels) in listed.items():
        own = {label for sample in exported[name].samples for label in sample.labels} - {"le"}
        of_server = name in {"cobali_batches", "cobali_batch_lines"}
        assert ("engine" in own) != of_server, "which all of them have but these, says the text"
        own -= {"engine"}
        assert (kind, labels) == (exported[name].type, own), name
    assert "carries the label `engine`" in read("docs/metrics.md")
    named = {word for document in DOCUMENTS for word in re.findall(r"\bcobali_[a-z0-9_]+", read(document))}
    assert named - {"cobali_ray", "cobali_workloads", "cobali_"} <= set(exported)


def test_the_tables_of_the_api_are_what_the_server_describes():
    page = read("docs/api.md")
    assert reference.written(page) == page, "make reference"


def test_every_parameter_is_explained():
    document = build_api(Fleet([]), ApiSettings()).openapi()
    schemas = document["components"]["schemas"]
    bodies = {name for name in schemas if name.endswith("Body") and not name.endswith("ErrorBody")}
    for name in bodies:
        for field, described in document["components"]["schemas"][name]["properties"].items():
            assert described.get("description", "").endswith("."), (name, field)


def test_a_page_without_a_place_for_a_table_is_an_error():
    with pytest.raises(KeyError, match="endpoints"):
        reference.written(read("docs/api.md").replace("<!-- endpoints -->", ""))


def kinds_of_errors(root=errors.CobaliError):
    return [root, *(kind for child in root.__subclasses__() for kind in kinds_of_errors(child))]


def test_every_error_is_listed():
    kinds = [kind for kind in kinds_of_errors() if kind.__module__ == errors.__name__]
    # A client never sees the parent of the refusals itself.
    real = {(str(kind.status), type_of(kind.status), kind.code) for kind in kinds if kind is not RefusedError}
    real |= {(str(status), kind, code) for status, (kind, code, _) in FRONT_ERRORS.items()}
    assert sorted(
        (row[0], row[1].strip("`"), row[2].strip("`")) for row in rows(read("docs/errors.md"))
    ) == sorted(real)


def test_every_label_of_a_counter_is_listed():
    meanings = {row[0].strip("`").partition("{")[0]: row[2] for row in rows(read("docs/metrics.md"))}
    assert set(ticked(meanings["cobali_requests_total"])) == set(OUTCOMES)
    assert set(ticked(meanings["cobali_refusals_total"])) == set(REFUSALS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_files_lead_somewhere(document):
    text = read(document)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    for link in links:
        path, _, anchor = link.partition("#")
        target = ROOT / path if path else ROOT / document
        assert target.exists(), link
        if anchor:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, (
                link
            )
    names = {word for word in ticked(text) if FILE_NAME.fullmatch(word)} - NOT_OURS
    for name in names:
        assert any((ROOT / place / name).exists() for place in PLACES), name


def commands():
    """Return the words of every `cobali` command in a block, and those behind ARGS= of `make serve`."""
    found = []
    for block in blocks("bash", "README.md", "docs/install.md", COMMANDS):
        if block.startswith("curl"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["cobali"]:
                found.append(words[1:])
            if words[:2] == ["make", "serve"] and words[2:]:
                found.append(["serve", *shlex.split(words[2].removeprefix("ARGS="))])
            starts = [i for i, word in enumerate(words) if word.endswith("/cobali")]
            found += [words[i + 1 :] for i in starts]
    return [pytest.param(words, id=" ".join(words)[:60]) for words in found]


@pytest.mark.parametrize("words", commands())
def test_a_command_is_understood(words):
    command, path = typer.main.get_command(cli), []
    while hasattr(command, "commands"):
        path.append(words[len(path)])
        lazy = path[-1] in getattr(command, "places", ())
        command = command.load(path[-1]) if lazy else command.commands[path[-1]]
    assert CliRunner().invoke(cli, [*path, "--help"]).exit_code == 0
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    rest = words[len(path) :]
    assert {word for word in rest if word.startswith("-")} <= known
    if path == ["serve"] and rest and not rest[0].startswith("-"):
        parse_reference(rest[0])
    for option, value in pairwise(rest):
        if option == "--set" and path != ["chat"]:
            name, _, text = value.partition("=")
            read_settings({name: yaml.safe_load(text)})
        if option == "--model":
            parse_reference(value)
        if option == "--prompts":
            assert (ROOT / value.removeprefix("$PWD/")).is_file()


def test_the_commands_of_the_documents_were_found():
    assert len(commands()) >= 6


def test_the_benchmarks_named_are_those_there_are():
    table = read("docs/performance.md").partition("| over HTTP | in this process |\n|---|---|")[2]
    listed = {
        name
        for row in table.splitlines()
        for cell in row.split("|")
        for name in ticked(cell.partition(":")[0])
    }
    assert listed == set(NAMES)
    # Reports and the changelog keep the commands of their day.
    paths = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "benchmarks"]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    texts += map(read, {*DOCUMENTS} - {"CHANGELOG.md"})
    named = re.findall(r"`cobali bench (\w+)", "\n".join(texts))
    assert set(named) - {"NAME"} <= set(NAMES)
    assert not any("python -m cobali_workloads" in text for text in (*map(read, DOCUMENTS), *texts))


def test_every_subcommand_is_explained():
    listed = [row[0] for row in rows(read(COMMANDS))]
    for name in typer.main.get_command(cli).commands:
        assert any(f"`cobali {name}`" in cell for cell in listed), name


def test_every_make_target_is_named():
    text = "\n".join(map(read, ("README.md", "docs/install.md", "CONTRIBUTING.md")))
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)(?:\S+ )?make ([a-z-]+)", text, re.MULTILINE)) == targets


def test_every_extra_is_listed():
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    listed = read("docs/install.md").partition("| extra |")[2].partition("\n\n")[0]
    assert [row[0].strip("`") for row in rows(f"| extra |{listed}")] == list(extras)


def test_set_values_in_the_text_are_valid():
    readme = read("README.md")
    for text in re.findall(r"--set '([^']+)'", readme):
        name, _, value = text.partition("=")
        read_settings({name: yaml.safe_load(value)})
    told = read("docs/performance.md").partition("**Reproducible answers**")[2]
    advice = told.partition(" With `flash_attn: on`")[0]
    pairs = dict(word.split(": ") for word in ticked(advice) if ": " in word)
    assert {"kv", "flash_attn", "min_prefix"} <= set(pairs)
    read_settings({name: yaml.safe_load(value) for name, value in pairs.items()})


def test_the_curl_body_is_a_chat():
    (command,) = [shlex.split(block) for block in blocks("bash") if block.startswith("curl")]
    body = command[command.index("-d") + 1]
    assert parse(ChatBody, body.encode()).messages[0]["role"] == "user"
    answer = json.loads(blocks("json")[0])
    assert list(answer)[-2:] == ["usage", "timings"]


def test_the_examples_of_structured_output_are_taken():
    text = read("docs/structured-output.md")
    bash, python = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("bash", "python"))
    bodies = [words[words.index("-d") + 1] for words in map(shlex.split, bash)]
    rows = re.findall(r'^\| `("\w+": .*)` \| `(.+)` \|$', text, re.MULTILINE)
    assert len(bodies) == 1
    assert len(rows) == 5
    for body in (*bodies, *(f'{{"messages": [{{}}], {fields}}}' for fields, _ in rows)):
        found = constraint_of(parse(ChatBody, body.encode()))
        check(found.path, found.kind, found.text, strict=True)
    for source in python:
        compile(source, "docs/structured-output.md", "exec")
    asked = set(ticked(text.partition("| field | value |")[2].partition("\n\n")[0]))
    spellings = {"response_format", "structured_outputs", *GenerationBody.model_fields} & asked
    assert spellings >= {"json_schema", "guided_json", "regex", "guided_regex", "grammar", "guided_choice"}


def test_the_python_example_compiles():
    (source,) = blocks("python")
    names = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    assert names == {"openai"}


@pytest.mark.parametrize("name", ["serve_config.yaml", "serve_config.cluster.yaml"])
def test_serve_configs_hold_valid_settings(name):
    config = yaml.safe_load(read(name))
    (application,) = config["applications"]
    read_settings(application["args"])
    assert application["import_path"] == "cobali_ray.actors.app:build"


def test_the_layers_are_those_of_the_import_contract():
    contracts = tomllib.loads(read("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    real = [set(re.findall(r"cobali_ray\.(\w+)", layer)) for layer in contracts[0]["layers"]]
    block = read("ARCHITECTURE.md").partition("## Layers")[2].partition("```text\n")[2].partition("```")[0]
    drawn = [set(re.split(r"\s+\|\s+", re.split(r" {2,}", line)[0])) for line in block.splitlines()]
    assert drawn == real


@cache
def functions():
    """Return all functions of the package with their files, as `name` or `Class.name`."""
    found = {}
    for path, tree in trees(SERVER).items():
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        named = [(f"{one.name}.", node) for one in classes for node in one.body]
        for prefix, node in [*(("", node) for node in tree.body), *named]:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + node.name] = (path.relative_to(SERVER).as_posix(), node)
    return found


def names_in(node):
    return {getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(node)}


WAYS = tuple(f"cobali_ray/core/{room}/__init__.py" for room in ("dispatch", "cache", "plan"))
"""Rooms whose docstrings have a list of functions, too."""
STEP = re.compile(r"^(\d+)\. `([\w.]+)` in `([\w/]+\.py)`(.*(?:\n   .*)*)", re.MULTILINE)
BY_OTHERS = {
    *("Frame.__call__", "Lock.__call__", "Generation.chat", "Reply.__call__"),  # ASGI and its router
    *("EngineLoop._run", "Puller._read", "OpenRequests.publish"),  # a thread, a loop, and who was given it
}
"""Functions of a request's path that none of it calls by name."""


def steps():
    """Return the steps of the lists of functions: number, name, file and the other functions named there."""
    text = "\n".join(map(read, ("ARCHITECTURE.md", *WAYS)))
    for number, name, file, rest in STEP.findall(text):
        by, _, then = rest.partition(": ") if rest.startswith(", by ") else ("", "", rest)
        yield int(number), name, file, ticked(by), [word for word in ticked(then) if word != "Call"]


def test_the_lists_of_functions_name_those_that_there_are():
    known = functions()
    for number, name, file, before, behind in steps():
        assert known[name][0] == file, (number, name)
        assert {*before, *behind} <= known.keys(), (number, name)


def test_each_function_of_a_requests_path_is_called_by_one_before_it():
    known, path = functions(), list(steps())[:20]
    assert [number for number, *_ in path] == list(range(1, 21))
    called = names_in(known["Dispatcher.__init__"][1]) | names_in(known["Scheduler.__init__"][1])
    for _, name, _, before, behind in path:
        for one in (*before, name, *behind):
            _, function = known[one]
            assert one in BY_OTHERS or function.name in called, one
            called |= names_in(function)


def test_the_rooms_are_those_there_are_and_weigh_about_what_is_said():
    def cells(table):
        return [(name, int(n.replace(",", "")), what) for name, n, what in rows(table)]

    said = cells(rooms.TABLE.search(read("ARCHITECTURE.md"))[0])
    real = cells(rooms.table())
    assert [(name, what) for name, _, what in said] == [(name, what) for name, _, what in real], (
        "make reference"
    )
    wrong = [one for one, now in zip(said, real, strict=True) if abs(one[1] - now[1]) > max(200, now[1] / 10)]
    assert wrong == [], "make reference"


@pytest.fixture
def decisions():
    files = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    records = [re.split(r"^## ", read(file), flags=re.MULTILINE)[1:] for file in files]
    numbers = [[int(record.partition(".")[0]) for record in of_file] for of_file in records]
    assert all(of_file == sorted(of_file) for of_file in numbers)
    return sorted(chain.from_iterable(records), key=lambda record: int(record.partition(".")[0]))


def test_decisions_are_numbered_and_dated_in_their_order(decisions):
    titles = [decision.splitlines()[0] for decision in decisions]
    found = [DECISION_TITLE.fullmatch(title) for title in titles]
    assert [title for title, match in zip(titles, found, strict=True) if not match] == []
    assert [int(match["number"]) for match in found] == list(range(1, len(titles) + 1))
    dates = [date.fromisoformat(match["date"]) for match in found]
    assert dates == sorted(dates)
    later = [(int(match["number"]), int(match["by"])) for match in found if match["by"]]
    assert [pair for pair in later if not pair[0] < pair[1] <= len(titles)] == []


def test_what_binds_today_is_not_superseded(decisions):
    titles = [decision.splitlines()[0] for decision in decisions]
    for number, title in re.findall(r"\[(\d+)\]\(docs/decisions/\w+\.md#(\S+)\)", read("DECISIONS.md")):
        assert titles[int(number) - 1].startswith(f"{number}. ")
        assert title.startswith(f"{number}-")
        superseded = DECISION_TITLE.fullmatch(titles[int(number) - 1])["by"]
        assert not superseded or "in part" in titles[int(number) - 1], number


def test_every_decision_has_its_five_lines(decisions):
    for decision in decisions:
        title, *lines = [line for line in decision.splitlines() if line]
        starts = [re.match(r"- \*\*(\w+)\*\*", line) for line in lines]
        assert tuple(start and start[1] for start in starts) == DECISION_LINES, title


@pytest.mark.parametrize("document", DOCUMENTS)
def test_nothing_is_left_to_fill_in(document):
    assert not PLACEHOLDERS.search(read(document))


@pytest.mark.parametrize(
    "recipe", sorted((ROOT / "docs" / "recipes").glob("*.md")), ids=lambda path: path.stem
)
def test_a_recipe_says_whether_it_was_run_and_its_files_parse(recipe):
    text = recipe.read_text(encoding="utf-8")
    title, *_, said = text.split("\n\n")
    assert title.startswith("# ")
    assert re.match(r"\*\*Run\*\* on \d{4}-\d\d-\d\d with |\*\*Not run\*\*", said)
    parsers = {"yaml": lambda text: list(yaml.safe_load_all(text)), "toml": tomllib.loads, "json": json.loads}
    for kind, block in re.findall(r"^ *```(yaml|toml|json)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        assert parsers[kind](textwrap.dedent(block))


def test_the_clients_page_names_the_pinned_versions():
    linked = [row for row in rows(read("docs/clients.md")) if row[0].startswith("[")]
    told = {row[0][1:].partition("]")[0].lower().replace(" ", "-"): row[1] for row in linked}
    pins = {}
    for name, wanted in CLIENTS.items():
        (pinned,) = re.findall(
            rf"^{re.escape(wanted.partition('[')[0])}==(.+)$",
            read(f"tests/clients/requirements/{name}.txt"),
            re.MULTILINE,
        )
        pins[name.replace("_", "-")] = pinned
    for name, (wanted, *_) in PROGRAMS.items():
        pinned = json.loads(read(f"tests/clients/requirements/{name}/package.json"))["dependencies"]
        pins[name.replace("_", "-")] = pinned[wanted.removesuffix("@latest")]
    assert told == pins
    for name in ("aider", *PROGRAMS):
        recipe = name.replace("_", "-")
        assert f" {pins[recipe]} " in read(f"docs/recipes/{recipe}.md").split("\n\n")[-1], recipe
