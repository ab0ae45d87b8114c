#!/usr/bin/env bash
# Install nsyspipe into .venv and analyze a sample run. Debian or Ubuntu, Python 3.11 or newer.
set -euo pipefail
cd "$(dirname "$0")/.."

source tests/environment.sh
make_environment
echo "Installing nsyspipe into .venv. This takes about a minute." >&2
.venv/bin/pip install -q .
.venv/bin/nsyspipe analyze "sample_reports/ddp-4gpu-before_*.sqlite" "$@"
echo "To use nsyspipe in this shell: source .venv/bin/activate" >&2
