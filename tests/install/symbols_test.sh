# shellcheck shell=bash
# libkvcache.so exports what the headers declare, under a version, and nothing else; it needs the C
# library, its math and its threads, and nothing else. libkvcache.a takes no names but kvc_….
set -euo pipefail

library=$BUILD_DIR/libkvcache.so
failed=0

# expect_none <what is wrong> <lines>: fails where there are lines.
expect_none() {
    [[ -z $2 ]] && return
    printf '%s:\n%s\n' "$1" "$2"
    failed=1
}

needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
expect_none "libkvcache.so needs more than libc, libm and pthreads" \
    "$(grep -vE '^(libc|libm|libpthread|ld-linux[a-z0-9-]*)\.so\.[0-9]+$' <<<"$needed" || true)"

version=$(sed -n 's/^#define KVC_VERSION_[A-Z]* //p' "$SOURCE_DIR/include/kvcache/version.h" | paste -sd.)
case $version in
0.*) abi=${version%.*} ;;
*) abi=${version%%.*} ;;
esac
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
[[ $soname == "libkvcache.so.$abi" ]] ||
    expect_none "soname, libkvcache.so.$abi wanted" "$soname"

exported=$(nm -D --defined-only --format=just-symbols "$library" | grep -v '^KVCACHE_')
expect_none "exported, but not as kvc_name@@KVCACHE_$abi" \
    "$(grep -vE "^kvc_[a-z0-9]+(_[a-z0-9]+)*@@KVCACHE_$abi\$" <<<"$exported" || true)"

declared=$(echo '#include <kvcache/kvcache.h>' | "$CC" -I "$SOURCE_DIR/include" -E -P - | tr '\n' ' ' |
    grep -oE 'visibility\("default"\)[^;]*;' | grep -oE 'kvc_[a-z0-9_]+\(' | tr -d '(' | sort)
names=$(cut -d@ -f1 <<<"$exported" | sort)
expect_none "declared with KVC_API, but not exported" "$(comm -23 <(echo "$declared") <(echo "$names"))"
expect_none "exported, but declared in no header" "$(comm -13 <(echo "$declared") <(echo "$names"))"

expect_none "names of libkvcache.a that are not kvc_…" \
    "$(nm --defined-only --extern-only --format=just-symbols "$BUILD_DIR/libkvcache.a" 2>/dev/null |
        grep -vE '^(kvc_|$|.*\.o:$)' || true)"

echo "$(wc -l <<<"$exported") symbols; needs ${needed//$'\n'/ }"
exit $failed
