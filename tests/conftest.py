"""What holds for every test: the same examples every time, however slow the machine is.

Whole houses take minutes and mostly wait, so they begin first, and the rest fills the time.
`--hypothesis-profile soak` tries ten times as many, also where a test asks for a share of them.
"""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "flopwatch",
    derandomize=True,
    deadline=None,
    # Fixtures are made once for all examples of a test: those here are made to be used again.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("soak", settings.get_profile("flopwatch"), max_examples=1000)
settings.load_profile("flopwatch")


_FIRST = ("system", "simulation", "house", "slurm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of whole houses before all others."""
    items.sort(key=lambda item: item.path.parent.name not in _FIRST)
