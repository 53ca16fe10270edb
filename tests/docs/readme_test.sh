# shellcheck shell=bash
# The program in README.md compiles without a warning, and runs.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$SOURCE_DIR"

awk '/^```c$/ {code = 1; next} /^```/ {code = 0} code' README.md >"$work/readme.c"
"$CC" -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -I include \
    -o "$work/readme" "$work/readme.c" "$LIBRARY" -lm -pthread
printed=$("$work/readme")
echo "$printed"
[[ $printed == "1000 positions; "* ]]
