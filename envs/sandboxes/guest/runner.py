"""Run `python -m MODULE ...` in this interpreter and attest how it ended.

The test runner and the code under test share one process, so what the runner reports can be tampered with from inside.
This wrapper makes that harder and visible: after the runner has returned *to it*, it compares the runner's code with
how it was before (monkeypatched?), hashes the report (rewritten later?), and sends both with the exit code and a secret
to a pipe. A program that leaves early (`os._exit(0)`) sends nothing. What no in-process check can see: code written
against this very wrapper.

As a script: python runner.py REPORT NONCE FD MODULE ARG...
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import runpy
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

# Test runners that are known, and the module trees whose code must come through a run unchanged.
RUNNER_TREES = {
    "unittest": ("unittest",),
    "xmlrunner": ("unittest", "xmlrunner"),
    "pytest": ("unittest", "pytest", "_pytest", "pluggy"),
}
_MAX_REPORT = 64 << 20
# Module -> fingerprint of its runner's trees, taken before any untrusted code ran.
_baselines: dict[str, Fingerprint] = {}


def preload(module: str) -> bool:
    """Import a known runner and remember how it looks, before any untrusted code; False if it is not installed, which
    is not the response's fault. Other modules are left to the run."""
    if module in RUNNER_TREES and module not in _baselines:
        if importlib.util.find_spec(module) is None:
            return False
        importlib.import_module(module)
        if module == "xmlrunner":
            importlib.import_module("xmlrunner.runner")
        importlib.import_module("unittest.mock")
        _baselines[module] = fingerprint(RUNNER_TREES[module])
    return True


@dataclass
class Fingerprint:
    """How the runner looked. It holds the objects themselves, so that identity is a sound comparison.

    modules: name -> module object; members: (label, live namespace, name, value, code object of a plain function);
    classes: (label, live namespace, names that were in it).
    """

    modules: dict[str, ModuleType]
    members: list[tuple[str, Mapping[str, Any], str, Any, object]]
    classes: list[tuple[str, Mapping[str, Any], frozenset[str]]]


def _code_of(value: object) -> object:
    return value.__code__ if isinstance(value, FunctionType) else None


def fingerprint(roots: Sequence[str]) -> Fingerprint:
    """Remember every callable in the modules and classes below `roots`, and the builtins."""
    found = Fingerprint({}, [], [])
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or (name != "builtins" and name.partition(".")[0] not in roots):
            continue
        found.modules[name] = module
        for attribute, value in list(vars(module).items()):
            if callable(value):
                found.members.append((name, vars(module), attribute, value, _code_of(value)))
            # A class is looked into once, where it is defined.
            if isinstance(value, type) and value.__module__ == name and name != "builtins":
                label, space = f"{name}.{value.__qualname__}", vars(value)
                found.classes.append((label, space, frozenset(space)))
                for member, inner in list(space.items()):
                    if callable(inner) or isinstance(inner, (classmethod, staticmethod, property)):
                        found.members.append((label, space, member, inner, _code_of(inner)))
    return found


def changes(before: Fingerprint) -> list[str]:
    """Names whose code is not what it was: replaced, removed, or added to one of the runner's classes."""
    changed = [name for name, module in before.modules.items() if sys.modules.get(name) is not module]
    for label, space, name, value, code in before.members:
        if space.get(name) is not value or _code_of(value) is not code:
            changed.append(f"{label}.{name}")
    for label, space, names in before.classes:
        if len(space) != len(names):
            changed += [f"{label}.{name}" for name in space.keys() - names if callable(space[name])]
    return sorted(changed)


def report_digest(path: str) -> str:
    """sha256 of the report file, "" if there is none that can be read as a plain file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(fd, "rb") as file:
        return hashlib.sha256(file.read(_MAX_REPORT)).hexdigest()


def run_module(module: str, arguments: Sequence[str], report: str, nonce: str, attest_fd: int) -> int:
    """What `python -m module arguments` does in the current directory, then the attestation; returns the exit code."""
    pid = os.getpid()
    before = _baselines.get(module) or fingerprint(RUNNER_TREES.get(module, ()))
    sys.argv = [module, *arguments]
    sys.path.insert(0, os.getcwd())
    sys.dont_write_bytecode = True
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if code == 1 and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # the program may have closed or replaced it
            continue
    if os.getpid() == pid:  # a fork that came back here has nothing to attest
        tampered = changes(before)
        message = {"nonce": nonce, "code": code, "report": report_digest(report), "tampered": tampered[:20]}
        os.write(attest_fd, json.dumps(message).encode())
        os.close(attest_fd)
    return code


def python_module(argv: Sequence[str]) -> str | None:
    """MODULE if argv is `python -m MODULE ...` (any python name), else None."""
    name = os.path.basename(argv[0])
    is_python = name in ("python", "python3") or name.startswith("python3.")
    return argv[2] if is_python and len(argv) > 2 and argv[1] == "-m" else None


if __name__ == "__main__":
    _report, _nonce, _fd, _module, *_arguments = sys.argv[1:]
    if not preload(_module):
        sys.exit(f"the test runner {_module} is not installed")
    os._exit(run_module(_module, _arguments, _report, _nonce, int(_fd)) & 0xFF)
