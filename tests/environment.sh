# shellcheck shell=bash
# Sourced by sample_reports/try.sh and tests/run.sh.

# Make the virtual environment .venv if there is none. Debian and Ubuntu ship Python without the
# module for that: it is installed first if it is missing, which needs root or sudo.
make_environment() {
  if [ -x .venv/bin/pip ]; then
    return
  fi
  if ! python3 -c "import ensurepip, venv" 2>/dev/null; then
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
      as_root=(sudo)
    fi
    "${as_root[@]}" apt-get update -q
    "${as_root[@]}" apt-get install -qy python3-venv
  fi
  python3 -m venv .venv
}
