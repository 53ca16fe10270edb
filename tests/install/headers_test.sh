# shellcheck shell=bash
# Every public header compiles alone, twice over, as C11, C++11 and C++17, without a warning.
set -euo pipefail

warnings=(-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)

# compile <header> <compiler and its options>…
compile() {
    printf '#include <kvcache/%s>\n#include <kvcache/%s>\nint unused;\n' "$1" "$1" |
        "${@:2}" "${warnings[@]}" -I "$SOURCE_DIR/include" -fsyntax-only - ||
        { echo "$1 does not compile with: ${*:2}" && exit 1; }
}

count=0
for path in "$SOURCE_DIR"/include/kvcache/*.h; do
    header=${path##*/}
    compile "$header" "$CC" -x c -std=c11
    compile "$header" "$CXX" -x c++ -std=c++11
    compile "$header" "$CXX" -x c++ -std=c++17
    count=$((count + 1))
done
echo "$count headers compile alone"
