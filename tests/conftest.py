"""For all tests."""

import signal

from hypothesis import HealthCheck, settings

# A shell that starts a test run in the background makes it ignore Ctrl-C, and every child inherits that. Tests that
# interrupt a child need the ordinary behaviour.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How quick an example is says more about the machine than about the code; speed is measured by `make bench`.
settings.register_profile("boostapr", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("boostapr")
