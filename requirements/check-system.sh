#!/bin/sh
# What pip cannot install: check-system.sh PYTHON. Says which Debian package brings what is missing.
python=$1
missing=""

need() {
    echo "make install: $1 is missing ($2)." >&2
    missing="$missing $3"
}

if ! command -v "$python" >/dev/null 2>&1; then
    need "$python" "the tested interpreter; another one: make PYTHON=..." python3.11
elif ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    echo "make install: $python is $("$python" -V); the pinned set is for Python 3.11. Name one with make PYTHON=..." >&2
    exit 1
elif ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
    need "Python's venv module" "the environment is made with it" python3.11-venv
fi
command -v git >/dev/null 2>&1 || need git "patches are applied with git apply" git
if command -v ldconfig >/dev/null 2>&1 && ! ldconfig -p | grep -q 'libnuma\.so\.1'; then
    need libnuma.so.1 "vLLM's CPU build links to it" libnuma1
fi
if [ -n "$missing" ]; then
    echo "On Debian: apt-get install$missing" >&2
    exit 1
fi
