# shellcheck shell=bash
# Sourced by the scripts: strict mode, the repository's root as the working folder, a few words.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# say <words>…: what happens now. On stdout, in bold when that is a terminal.
say() {
    if [[ -t 1 ]]; then printf '\033[1m== %s\033[0m\n' "$*"; else printf '== %s\n' "$*"; fi
}

# die <words>…: one line of what is wrong and what to do, and the end.
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# build_dir <preset>: where that preset builds (as CMakePresets.json has it).
build_dir() {
    if [[ $1 == release ]]; then echo build; else echo "build-$1"; fi
}
