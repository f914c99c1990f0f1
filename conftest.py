"""Shared settings of all tests."""

import functools
import gc
import os
import sys

import httpcore2
import pytest
import structlog
from hypothesis import HealthCheck, settings

from cobali_ray.actors.node import RAY_FLAGS

pytest_plugins = ["tests.postgres"]  # fixtures of unit and API tests

# Their libraries are in environments of their own: `make clients`.
collect_ignore = ["tests/clients"]

# What collecting makes stays to the end; the garbage collector need not look through it again and again.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)  # to look after each 700 objects takes a tenth of all the time
    gc.enable()


# Nobody here speaks TLS, and each client would read all certificates of the machine, for 70 ms.
httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)

for name, n_examples in (("default", 24), ("thorough", 400)):  # `make test-all` asks for the second
    settings.register_profile(
        name, max_examples=n_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("default")

# Ray reads them when it is first imported, and not only the tests of tests/ray import it.
for name, value in RAY_FLAGS.items():
    os.environ.setdefault(name, value)


def pytest_terminal_summary(terminalreporter):
    """Show why a test had to be tried again."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"tried again: {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)


def pytest_addoption(parser):
    """Say which devices the tests in tests/gpu run on."""
    parser.addoption("--device", help="what tests/gpu runs on, as the setting `devices` has it")


PLAIN = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
"""The default draws each traceback with its code in colours and all variables, for a fifth of a second."""


def hear_everything():
    """Log all there is to stderr; tests read what goes to stdout."""
    structlog.reset_defaults()
    processors = [*structlog.get_config()["processors"][:-1], PLAIN]
    structlog.configure(processors, logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


hear_everything()


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def logs_as_at_the_start():
    """A command that a test runs sets how much is logged; the next test hears everything again."""
    yield
    hear_everything()
