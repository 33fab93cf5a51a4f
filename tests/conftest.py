"""Settings of all tests."""

from hypothesis import settings

# A machine that is busy with something else is no reason to fail.
settings.register_profile("miniclaw", deadline=None)
settings.load_profile("miniclaw")
