"""Settings of all harness tests."""

from hypothesis import settings

# the test machine may be busy, and how long an example takes says nothing about correctness
settings.register_profile("harness", deadline=None)
settings.load_profile("harness")
