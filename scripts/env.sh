# Sourced by the other scripts: makes .venv of this checkout fit for use, from a machine with nothing but python3.
#
#   need_env ""        the package and what it depends on
#   need_env "[test]"  and what the tests need
#
# A stamp with the hash of pyproject.toml tells whether there is anything to do. It holds the path of the checkout:
# a .venv that was moved or copied has the old path in its scripts, and is built anew.

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$HERE/.venv

_note() { printf 'env: %s\n' "$*" >&2; }
_stop() { _note "$@"; exit 1; }

_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

_find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null 2>&1 && _new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

_apt_install() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        _stop "this needs $*: install it (on Debian: sudo apt-get install $*) and run again"
    fi
    _note "installing $* with apt-get"
    _quietly apt-get update -qq
    DEBIAN_FRONTEND=noninteractive _quietly apt-get install -y -qq --no-install-recommends "$@"
}

# Runs a command that has much to say; it is shown only if the command fails.
_quietly() {
    local log
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        _stop "failed: $*"
    fi
    rm -f "$log"
}

_need_writable() {
    local place
    for place in "$HERE" "$HERE/.cache" "$VENV"; do
        if [ -e "$place" ] && [ ! -w "$place" ]; then
            _stop "$place belongs to $(stat -c %U "$place") and $(id -un) may not write there:" \
                "run this as $(stat -c %U "$place"), or in a copy of your own"
        fi
    done
}

_make_venv() {
    local python
    python=$(_find_python) || { _apt_install python3 python3-venv; python=$(_find_python); } ||
        _stop "no Python 3.11 or newer was found; name one with PYTHON=/path/to/python3"
    # Debian's python3 comes without ensurepip, and a venv without pip is of no use.
    "$python" -c 'import ensurepip, venv' 2>/dev/null || _apt_install python3-venv
    _note "creating $VENV with $python"
    "$python" -m venv --clear "$VENV" || _stop "$python -m venv failed"
}

_prepare() {
    local extras=$1 stamp=$2
    if _moved; then
        _note "$VENV was made for another folder"
        _make_venv
    elif ! _new_enough "$VENV/bin/python" || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        _make_venv
    fi
    _note "installing dfq$extras into $VENV"
    # The compat mode is a plain path: the other one costs every start of Python some 20 ms.
    (cd "$HERE" && "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
        --config-settings editable_mode=compat -e ".$extras") ||
        _stop "pip could not install dfq$extras: see above; is a package registry within reach?"
    rm -f "$VENV/.stamp-${extras//[^a-z]/}-"*
    printf '%s\n' "$HERE" >"$stamp"
}

# Tells whether there is a .venv whose stamps name another folder.
_moved() {
    local found
    for found in "$VENV"/.stamp-*; do
        if [ -e "$found" ] && [ "$(cat "$found")" != "$HERE" ]; then return 0; fi
    done
    return 1
}

_ready() { [ -e "$1" ] && ! _moved && "$VENV/bin/python" -P -c 'import dfq' 2>/dev/null; }

need_env() {
    local extras=$1 stamp
    stamp=$VENV/.stamp-${extras//[^a-z]/}-$(sha256sum "$HERE/pyproject.toml" | cut -c1-16)
    if ! _ready "$stamp"; then
        _need_writable
        # Two scripts started at once must not build the same folder: the second waits, and then finds it done.
        mkdir -p "$HERE/.cache"
        exec 9>"$HERE/.cache/env.lock"
        if command -v flock >/dev/null 2>&1; then flock 9; fi
        _ready "$stamp" || _prepare "$extras" "$stamp"
        exec 9>&-
    fi
}
