"""Settings and fixtures of all tests."""

import gc
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import miniclaw.config
from tests.support.browser import chromium, dictated

__all__ = ["chromium", "dictated"]

# A developer's own `.env` is none of the tests' business.
os.environ["MINICLAW_PROJECT"] = ""
miniclaw.config.CHECKOUTS = ()

# A machine that is busy with something else is no reason to fail.
# On a strict run the examples are the same each time: its verdict is on the commit, not on the dice.
settings.register_profile(
    "miniclaw",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="MINICLAW_TEST_STRICT" in os.environ,
)
settings.load_profile("miniclaw")


def pytest_collection_finish() -> None:
    """The thousands of tests themselves are no garbage: a full collection in the middle of one passes them over."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """A command that a test runs sets logging up for its whole process; the next test has its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        if isinstance(handler, logging.FileHandler):
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
