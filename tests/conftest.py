"""For all tests."""

import signal

# A shell that starts a test run in the background makes it ignore Ctrl-C, and every child inherits that. Tests that
# interrupt a child need the ordinary behaviour.
signal.signal(signal.SIGINT, signal.default_int_handler)
