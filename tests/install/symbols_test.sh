# shellcheck shell=bash
# Each shared library exports what its headers declare, under a version, and nothing else, and needs
# nothing but what it may need: the core the C library, its math and its threads. The archives take
# no names but kvc_….
set -euo pipefail

failed=0

# expect_none <what is wrong> <lines>: fails where there are lines.
expect_none() {
    [[ -z $2 ]] && return
    printf '%s:\n%s\n' "$1" "$2"
    failed=1
}

version=$(sed -n 's/^#define KVC_VERSION_[A-Z]* //p' "$SOURCE_DIR/include/kvcache/version.h" | paste -sd.)
case $version in
0.*) abi=${version%.*} ;;
*) abi=${version%%.*} ;;
esac

# declared <header>…: the functions that these headers declare, those of the headers they include too.
declared() {
    printf '#include <kvcache/%s>\n' "$@" | "$CC" -I "$SOURCE_DIR/include" -E -P - | tr '\n' ' ' |
        grep -oE 'visibility\("default"\)[^;]*;' | grep -oE '\bkvc_[a-z0-9_]+ *\(' | tr -d '( ' | sort -u
}

# check_library <name> <version's name> <declared functions> <what it may need>
check_library() {
    local library=$BUILD_DIR/$1.so needed soname exported names
    needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    expect_none "$1.so needs more than $4" "$(grep -vE "^($4)\.so\.[0-9.]+$" <<<"$needed" || true)"

    soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
    [[ $soname == "$1.so.$abi" ]] || expect_none "soname, $1.so.$abi wanted" "$soname"

    exported=$(nm -D --defined-only --format=just-symbols "$library" | grep -v '^KVCACHE_')
    expect_none "exported, but not as kvc_name@@$2_$abi" \
        "$(grep -vE "^kvc_[a-z0-9]+(_[a-z0-9]+)*@@$2_$abi\$" <<<"$exported" || true)"
    names=$(cut -d@ -f1 <<<"$exported" | sort)
    expect_none "declared with KVC_API, but not exported" "$(comm -23 <(echo "$3") <(echo "$names"))"
    expect_none "exported, but declared in no header" "$(comm -13 <(echo "$3") <(echo "$names"))"

    expect_none "names of $1.a that are not kvc_…" \
        "$(nm --defined-only --extern-only --format=just-symbols "$BUILD_DIR/$1.a" 2>/dev/null |
            grep -vE '^(kvc_|$|.*\.o:$)' || true)"
    echo "$1: $(wc -l <<<"$exported") symbols; needs ${needed//$'\n'/ }"
}

core=$(declared kvcache.h)
libc='libc|libm|libpthread|ld-linux[a-z0-9-]*'
check_library libkvcache KVCACHE "$core" "$libc"
if [[ -e $BUILD_DIR/libkvcache-store.so ]]; then
    store=$(declared kvcache.h safetensors.h spill.h tier_disk.h)
    check_library libkvcache-store KVCACHE_STORE "$(comm -13 <(echo "$core") <(echo "$store"))" \
        "$libc|libkvcache|libjansson|libcrypto"
fi
if [[ -e $BUILD_DIR/libkvcache-redis.so ]]; then
    check_library libkvcache-redis KVCACHE_REDIS \
        "$(comm -13 <(echo "$store") <(declared kvcache.h safetensors.h spill.h tier_redis.h tier_disk.h))" \
        "$libc|libkvcache|libkvcache-store|libhiredis|libhiredis_ssl|libssl|libcrypto"
fi
exit $failed
