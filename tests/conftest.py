"""Settings and fixtures of all tests."""

from hypothesis import settings

from tests.support.browser import chromium, dictated

__all__ = ["chromium", "dictated"]

# A machine that is busy with something else is no reason to fail.
settings.register_profile("miniclaw", deadline=None)
settings.load_profile("miniclaw")
