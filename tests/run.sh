#!/usr/bin/env bash
# Install nsyspipe and its test dependencies into .venv, and run the tests. Debian or Ubuntu, Python 3.11 or newer.
# Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

source tests/environment.sh
make_environment
echo "Installing nsyspipe and its test dependencies into .venv. This takes a few minutes." >&2
.venv/bin/pip install -qU pip # the one of a new environment is too old for --group
.venv/bin/pip install -q -e . --group test
.venv/bin/python -m pytest "$@"
