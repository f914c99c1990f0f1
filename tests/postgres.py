"""PostgreSQL on this machine for tests: a server in a folder of its own, where each test has a database."""

import os
import re
import shutil
import subprocess
import tempfile
from itertools import count
from pathlib import Path

import pytest

from cobali_ray.extras import is_there
from cobali_ray.ports import free_port

USER = "cobali"


def programs():
    """Return the folder of `initdb` and `pg_ctl`, the newest; None where there is none."""
    if (there := shutil.which("initdb")) is not None:
        return Path(there).parent
    folders = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((one.parent for one in folders), key=lambda one: float(one.parent.name), default=None)


class PostgresServer:
    """As the user `postgres` where root runs the tests, as no PostgreSQL runs as root."""

    def __init__(self):
        self._programs = programs()
        self._as_user = (
            {"user": "postgres", "group": "postgres", "extra_groups": []} if not os.getuid() else {}
        )
        self.folder = Path(tempfile.mkdtemp(prefix="cobali-postgres-"))
        if self._as_user:
            shutil.chown(self.folder, "postgres", "postgres")
        self.port = free_port()
        self._numbers = count()
        self._run("initdb", "--username", USER, "--auth", "trust", "--encoding", "UTF8", "--no-sync")

    def _run(self, program, *words):
        result = subprocess.run(
            [self._programs / program, "--pgdata", self.folder / "data", *words],
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=120, check=False, **self._as_user,
        )  # fmt: skip
        assert not result.returncode, result.stdout

    def start(self):
        log = self.folder / "log"
        asked = f"-p {self.port} -h 127.0.0.1 -k {self.folder} -F"
        self._run("pg_ctl", "start", "--wait", "--log", log, "--options", asked)

    def stop(self, mode="immediate"):
        self._run("pg_ctl", "stop", "--wait", "--mode", mode)

    def remove(self):
        shutil.rmtree(self.folder)

    def url(self, database):
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def make_database(self):
        """Return the URL of a new one."""
        name = f"store_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}", on="postgres")
        return self.url(name)

    def execute(self, statement, on):
        import psycopg

        with psycopg.connect(self.url(on), autocommit=True) as db:
            return db.execute(statement)

    def cut(self, url):
        """End the sessions of a database, as a broken network does."""
        name = re.sub(r".*/", "", url)
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'"
        self.execute(ended.format(name), on="postgres")


@pytest.fixture(scope="session")
def postgres():
    if programs() is None:
        pytest.skip("needs PostgreSQL: make database")
    if not is_there("psycopg"):
        pytest.skip("needs psycopg, of the extra postgres")
    server = PostgresServer()
    server.start()
    yield server
    server.stop()
    server.remove()


@pytest.fixture
def database(postgres):
    """The URL of an empty database."""
    return postgres.make_database()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path):
    """Where a store is: each test is run with both."""
    return tmp_path / "data" if request.param == "sqlite" else request.getfixturevalue("database")
