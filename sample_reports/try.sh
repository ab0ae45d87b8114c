#!/usr/bin/env bash
# Install nsyspipe into .venv and analyze a sample run. Debian or Ubuntu, Python 3.11 or newer.
set -euo pipefail
cd "$(dirname "$0")/.."

source tests/environment.sh
make_environment
.venv/bin/pip install -q .
.venv/bin/nsyspipe analyze "sample_reports/ddp-4gpu-before_*.sqlite" "$@"
