#!/bin/bash
# Makes this checkout ready to use: system packages, and a virtual environment.
#
#   kofn/run/setup.sh          what `kofn run` needs
#   kofn/run/setup.sh lab      the same for a machine of a laboratory, which needs no Mininet (`kofn lab setup` runs this)
#   kofn/run/setup.sh check    nothing: it names the system packages that such a machine lacks if it has its own Python
#   kofn/run/setup.sh quick    what `make quick` needs as well
#   kofn/run/setup.sh dev      what the tests and checks need as well, a browser and PyTorch included where they can be had
#   kofn/run/setup.sh docs     what the tests need, and what builds the documentation's site
#   kofn/run/setup.sh torch    the same, and an error where PyTorch's CPU build (200 MB, 1 GB installed) cannot be had
#   kofn/run/setup.sh shell    p4runtime-shell, in .venv-shell: it needs older packages than the rest
#
# Costs a fraction of a second when everything is there.  Safe to interrupt and to repeat: the stamp that says "ready" is
# written last, and an environment without it is completed, or made again where it does not even start.
#
# Exit codes: 0 ready, 4 the package index cannot be reached, 1 anything else.
set -euo pipefail
cd "$(dirname "$0")/../.."

extra=${1:-}
say() { echo "setup: $*" >&2; }
fail() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null; }

exec 9<Makefile # one set-up at a time: two would spoil each other's environment
flock --nonblock 9 || { say "waiting for another set-up of this checkout"; flock 9; }

# --- system packages ------------------------------------------------------------------------------------------------

needed=()
system_python() { [ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null; }
case $extra in
    check) have python3 || needed+=(python3) ;;
    *) system_python || needed+=(python3-venv) ;;
esac
have cc || have gcc || have clang || needed+=(gcc)
[ -e /usr/include/stdio.h ] || needed+=(libc6-dev)
have ip || needed+=(iproute2)

can_install() { [ "$(id -u)" = 0 ] && have apt-get; }
# A fresh machine often updates itself: apt-get waits for that.
apt_install() {
    DEBIAN_FRONTEND=noninteractive briefly \
        apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" </dev/null
}

# What apt-get does.  Another machine's user sees a line for each package, and the first errors.
briefly() { # COMMAND...
    if [ "$extra" != lab ]; then "$@"; return; fi
    local line errors=0
    "$@" 2>&1 | while IFS= read -r line; do
        case $line in
            "Setting up "*) say "${line%% (*}" ;;
            E:*) [ $((errors += 1)) -gt 2 ] || say "$line" ;;
        esac
    done
}

# Updates apt-get's lists; fails if mirrors were asked and none of them has answered.
mirrors() {
    local words
    words=$(LC_ALL=C apt-get -o Acquire::Retries=0 -o Acquire::http::Timeout=15 update </dev/null 2>&1 \
        | if [ "$extra" = lab ]; then cat; else tee >(cat >&2); fi) || true
    ! grep -q 'Failed to fetch' <<<"$words" || grep -qE '^(Get|Hit):' <<<"$words"
}

by_hand="apt-get install --no-install-recommends ${needed[*]}"

install_system() {
    can_install || fail "these packages are missing: ${needed[*]} - install them ($by_hand), or run this as root"
    say "installing ${needed[*]}"
    local fetch=()
    mirrors || { say "no package mirror answers"; fetch=(--no-download); } # otherwise a time-out for each package
    apt_install "${fetch[@]}" "${needed[@]}" || fail "these packages are missing, and apt-get could not install them" \
        "(its message is above): ${needed[*]} - install them ($by_hand)," \
        "or let this machine reach a package mirror, and run this again"
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

# For the tests of the live page; wanted, not needed: without it they are skipped. Ubuntu's package is a snap, which
# cannot be driven here.
install_browser() {
    if ! can_install || ! grep -q '^ID=debian' /etc/os-release; then
        say "chromium and chromedriver are missing: the tests of the live page in a browser will be skipped"
        return
    fi
    say "installing chromium"
    [ ${#needed[@]} -gt 0 ] || apt-get update </dev/null
    apt_install chromium chromium-driver || say "chromium could not be installed: tests in a browser will be skipped"
}

if [ "$extra" = check ]; then
    [ ${#needed[@]} = 0 ] || fail "these packages are missing: ${needed[*]} - install them ($by_hand)"
    exit 0
fi

[ ${#needed[@]} = 0 ] || install_system
[ "$extra" = lab ] || have mn || install_mininet
case $extra in dev | docs) { have chromium && have chromedriver; } || install_browser ;; esac

if [ ! -w . ]; then
    [ -x .venv/bin/python ] || fail "$PWD must be writable, as it has no environment yet"
    say "$PWD is read-only: .venv is used as it is"
    exit 0
fi

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

# What an environment depends on: another place, another Python or other requirements make it stale.
fingerprint() { { pwd; "$venv/bin/python" --version; echo "$1"; cat "${inputs[@]}"; } | sha256sum; }
ready() { [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.ready-$1" 2>/dev/null)" = "$(fingerprint "$1")" ]; }

make_venv() {
    recent "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
    local python
    python=$(choose_python)
    say "making $venv with $python ($("$python" --version))"
    rm -rf "$venv"
    "$python" -m venv "$venv"
}

# What pip does, on one line of a terminal; its log has all of it.  Another machine's user sees each package.
one_line() {
    local line
    while IFS= read -r line; do
        [ ! -t 2 ] || printf '\r\033[K  %.76s' "$line" >&2
        [ "$extra" != lab ] || case $line in Collecting* | Installing*) say "${line%% (*}" ;; esac
    done
    [ ! -t 2 ] || printf '\r\033[K' >&2
}

# pip's last words are of versions that conflict, even where it never reached the index that has them.
explain() { # LOG
    if grep -qE 'Retry\(total=0|Max retries exceeded' "$1"; then
        [ "$extra" = lab ] || tail -n 20 "$1" >&2
        say "the package index cannot be reached: no network, or a proxy is needed;" \
            "what pip says of versions follows from that (its log: $1). Nothing is lost, run this again"
        exit 4
    fi
    tail -n 20 "$1" >&2
    fail "pip could not install the packages (its message is above); nothing is lost, run this again"
}

# Packages into an environment: COMMAND installs them, and the stamp NAME says that they are there.
install() { # NAME COMMAND...
    local name=$1 pip=("$venv/bin/python" -m pip --disable-pip-version-check install --progress-bar off)
    shift
    make_venv
    say "installing Python packages into $venv, a minute or two (its log: $venv/pip.log)"
    "$@" 2>&1 | tee "$venv/pip.log" | one_line || explain "$venv/pip.log"
    fingerprint "$name" >"$venv/.ready-$name.new"
    mv "$venv/.ready-$name.new" "$venv/.ready-$name"
    say "$venv is ready"
}

# setuptools builds the distributions, without an environment for each; PyTorch comes below, not from the index.
checkout() { # EXTRA...: the distributions of this checkout, and extras of kofn
    "${pip[@]}" -c constraints.txt setuptools \
        && "${pip[@]}" --no-build-isolation -r requirements.txt ${1+-e ".[$(IFS=,; echo "$*")]"} \
        && "${pip[@]}" --no-build-isolation --no-deps -e ./pytorch
}

p4runtime_shell() { "${pip[@]}" -r requirements-shell.txt; }

# PyTorch's +cpu build of constraints.txt: from the indexes of this machine, or from PyTorch's.  It is nowhere else, so
# this never brings gigabytes of CUDA; and no index but its own is asked for anything else.
install_torch() {
    local wanted pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
    wanted=$(grep '^torch==' constraints.txt)
    say "installing $wanted: 200 MB"
    "${pip[@]}" -c constraints.txt "$wanted" 2>"$venv/pip.log" && return
    "${pip[@]}" --no-deps --retries 0 --timeout 20 --index-url https://download.pytorch.org/whl/cpu "$wanted" \
        2>>"$venv/pip.log" && "${pip[@]}" -c constraints.txt "$wanted" 2>>"$venv/pip.log"
}

# Wanted, not needed; where it could not be had it is not looked for again until the requirements change.
want_torch() {
    { ready torch || ready no-torch; } && return
    if install_torch; then
        fingerprint torch >"$venv/.ready-torch"
    else
        say "$(grep '^torch==' constraints.txt) cannot be had ($venv/pip.log): tests of PyTorch will be skipped;" \
            "kofn/run/setup.sh torch tries again"
        fingerprint no-torch >"$venv/.ready-no-torch"
    fi
}

venv=.venv
inputs=(pyproject.toml */pyproject.toml constraints.txt requirements.txt)
case $extra in
    "" | lab) ready run || ready quick || ready dev || ready docs || install run checkout ;;
    quick) ready quick || ready dev || ready docs || install quick checkout test ;;
    dev | torch)
        ready dev || ready docs || install dev checkout dev
        [ "$extra" = dev ] || rm -f "$venv/.ready-no-torch"
        want_torch
        [ "$extra" = dev ] || ready torch || fail "PyTorch is not installed (above)"
        ;;
    docs) ready docs || install docs checkout dev docs ;;
    shell)
        venv=.venv-shell
        inputs=(requirements-shell.txt)
        ready shell || install shell p4runtime_shell
        ;;
    *) fail "the argument must be none, 'lab', 'check', 'quick', 'dev', 'docs', 'torch' or 'shell', got '$extra'" ;;
esac
