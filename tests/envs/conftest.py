"""Sandboxes for the tests of this folder."""

from collections.abc import Iterator

import pytest
from sandbox_cases import make_settings

from envs.sandboxes import BaseSandbox, open_sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[BaseSandbox]:
    """One warm sandbox for all tests: what one run leaves behind, the next would trip over."""
    with open_sandbox(make_settings()) as opened:
        yield opened
