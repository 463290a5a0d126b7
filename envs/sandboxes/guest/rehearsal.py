"""Two tests that the server runs once on itself, so that the runner's regular expressions, argument parsers and
traceback code are warm in every forked run."""

import unittest


class Rehearsal(unittest.TestCase):
    """One test that passes and one that fails, on purpose."""

    def test_passes(self) -> None:
        self.assertEqual(1, 1)

    def test_fails(self) -> None:
        self.assertEqual(1, 2)
