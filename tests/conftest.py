"""What holds for every test: the same examples every time, however slow the machine is."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "flopwatch",
    derandomize=True,
    deadline=None,
    # Fixtures are made once for all examples of a test: those here are made to be used again.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("flopwatch")
