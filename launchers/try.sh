#!/usr/bin/env bash
# Try what analyze advises: capture a job as it is and with the change, in turn; say what it brought, and what was promised.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
# shellcheck source=capture.bash
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/capture.bash"

check_python
exec "${ours[@]}" "$launchers/trial.py" "$@"
