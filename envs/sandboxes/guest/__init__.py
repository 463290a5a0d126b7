"""Code that runs on the untrusted side: standard library only, so that any Python 3.11 can run it from this folder alone.

PYTHONPATH=<the folder above> python -m guest.server
"""

import sys

# What a bare interpreter has loaded: everything later is unknown to a program that is about to run.
LOADED_AT_START = frozenset(sys.modules)
