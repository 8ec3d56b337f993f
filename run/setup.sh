#!/bin/bash
# Makes this checkout ready to use: system packages, and a virtual environment in .venv.
#
#   run/setup.sh          what `kofn run` needs
#   run/setup.sh dev      what the tests and checks need as well
#
# Costs a fraction of a second when everything is there.  Safe to interrupt and to repeat: the stamp that says "ready" is
# written last, and an environment without it is completed, or made again where it does not even start.
set -euo pipefail
cd "$(dirname "$0")/.."

extra=${1:-}
venv=.venv
say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null; }

# --- system packages ------------------------------------------------------------------------------------------------

needed=()
system_python() { [ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null; }
system_python || needed+=(python3-venv)
have cc || have gcc || have clang || needed+=(gcc)
[ -e /usr/include/stdio.h ] || needed+=(libc6-dev)
have ip || needed+=(iproute2)
have ping || needed+=(iputils-ping)

can_install() { [ "$(id -u)" = 0 ] && have apt-get; }
apt_install() { DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" </dev/null; }

install_system() {
    can_install || fail "these packages are missing: ${needed[*]}" \
        "- install them (apt-get install --no-install-recommends ${needed[*]}), or run this as root"
    say "installing ${needed[*]}"
    apt-get update </dev/null
    apt_install "${needed[@]}" || fail "apt-get could not install ${needed[*]} (its message is above)"
}

# Mininet is wanted, not needed: without it the network is made of plain namespaces.
install_mininet() {
    if ! can_install; then
        say "the package mininet is missing: plain network namespaces will be used (driver netns)"
        return
    fi
    say "installing mininet"
    [ ${#needed[@]} -gt 0 ] || apt-get update </dev/null
    apt_install mininet || say "mininet could not be installed: plain network namespaces will be used (driver netns)"
}

[ ${#needed[@]} = 0 ] || install_system
have mn || install_mininet

# --- virtual environment --------------------------------------------------------------------------------------------

recent() { [ -x "$1" ] && "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

choose_python() {
    local candidate
    for candidate in /usr/bin/python3 "$(command -v python3 || true)"; do
        if recent "$candidate"; then echo "$candidate"; return; fi
    done
    fail "Python 3.11 or later with its venv module is needed:" \
        "/usr/bin/python3 is $(/usr/bin/python3 --version 2>&1 || true), and python3 on the PATH is no newer"
}

# What the environment depends on: another place, another Python or other requirements make it stale.
fingerprint() { { pwd; "$venv/bin/python" --version; echo "$1"; cat pyproject.toml constraints.txt; } | sha256sum; }
ready() { [ -x "$venv/bin/kofn" ] && [ "$(cat "$venv/.ready-$1" 2>/dev/null)" = "$(fingerprint "$1")" ]; }

make_venv() {
    recent "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
    local python
    python=$(choose_python)
    say "making $venv with $python ($("$python" --version))"
    rm -rf "$venv"
    "$python" -m venv "$venv"
}

install_project() {
    local what=.
    [ "$1" = dev ] && what='.[dev]'
    say "installing the Python packages into $venv (about 100 MB the first time)"
    "$venv/bin/python" -m pip install --disable-pip-version-check -c constraints.txt -e "$what" \
        || fail "pip could not install the packages (its message is above); nothing is lost, run this again"
    fingerprint "$1" >"$venv/.ready-$1.new"
    mv "$venv/.ready-$1.new" "$venv/.ready-$1"
}

case $extra in
    "") ready run || ready dev || { make_venv; install_project run; say "ready"; } ;;
    dev) ready dev || { make_venv; install_project dev; say "ready"; } ;;
    *) fail "unknown argument '$extra': none or 'dev' is allowed" ;;
esac
