# shellcheck shell=bash
# Builds and runs a consumer of the library in every way that the README names: by pkg-config, shared
# and static; by find_package; by add_subdirectory. The installed tree is moved first: nothing in it
# may name where it was.
set -euo pipefail

here=$SOURCE_DIR/tests/install/consumer
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

version=$(sed -n 's/^#define KVC_VERSION_[A-Z]* //p' "$SOURCE_DIR/include/kvcache/version.h" | paste -sd.)

# expect_runs <program>: it prints the version of the library.
expect_runs() {
    local printed
    printed=$("$@") || { echo "$* failed with status $?" && exit 1; }
    [[ $printed == "libkvcache $version" ]] || { echo "$* printed '$printed'" && exit 1; }
    echo "ok: ${1#"$work"/}"
}

# expect_store_runs <program>…: the same of programs that save a file.
expect_store_runs() {
    local program
    for program; do expect_runs "$program" "$work/saved.safetensors"; done
}

"$CMAKE" --install "$BUILD_DIR" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix"
if grep -rIl "$work/first" "$work/prefix"; then echo "the files above name their prefix" && exit 1; fi

pc=$(find "$work/prefix" -name kvcache.pc)
export PKG_CONFIG_PATH=${pc%/*}
libdir=$(pkg-config --variable=libdir kvcache)
[[ $(pkg-config --modversion kvcache) == "$version" ]]

# shellcheck disable=SC2046 # several options
{
    "$CC" -o "$work/c-shared" "$here/consumer.c" $(pkg-config --cflags --libs kvcache) -Wl,-rpath,"$libdir"
    "$CXX" -o "$work/cxx-shared" "$here/consumer.cpp" $(pkg-config --cflags --libs kvcache) -Wl,-rpath,"$libdir"
    "$CC" -static -o "$work/c-static" "$here/consumer.c" $(pkg-config --cflags --static --libs kvcache)
}
readelf -d "$work/c-shared" | grep -q 'NEEDED.*libkvcache' || { echo "c-shared is not shared" && exit 1; }
expect_runs "$work/c-shared"
expect_runs "$work/cxx-shared"
expect_runs "$work/c-static"

# libkvcache-store, where it was built.
store=OFF
if [[ -e ${pc%/*}/kvcache-store.pc ]]; then
    store=ON
    # shellcheck disable=SC2046 # several options
    {
        "$CC" -o "$work/store-shared" "$here/store.c" $(pkg-config --cflags --libs kvcache-store) -Wl,-rpath,"$libdir"
        "$CC" -static -o "$work/store-static" "$here/store.c" $(pkg-config --cflags --static --libs kvcache-store)
    }
    expect_store_runs "$work/store-shared" "$work/store-static"
fi

# build_consumer <folder> <option>…
build_consumer() {
    {
        "$CMAKE" -G Ninja -S "$here" -B "$work/$1" -DCMAKE_C_COMPILER="$CC" \
            -DCMAKE_CXX_COMPILER="$CXX" "${@:2}" && "$CMAKE" --build "$work/$1"
    } >"$work/log" 2>&1 || { cat "$work/log" && exit 1; }
    for program in c-default c-static cxx-default; do expect_runs "$work/$1/$program"; done
    [[ "${*:2}" != *WITH_STORE=ON* ]] || expect_store_runs "$work/$1/store-default" "$work/$1/store-static"
}
build_consumer find-package -DCMAKE_PREFIX_PATH="$work/prefix"
[[ $store == OFF ]] || build_consumer find-package-store -DCMAKE_PREFIX_PATH="$work/prefix" -DWITH_STORE=ON
build_consumer add-subdirectory -DKVCACHE_SOURCE="$SOURCE_DIR"
[[ $store == OFF ]] || build_consumer add-subdirectory-store -DKVCACHE_SOURCE="$SOURCE_DIR" -DWITH_STORE=ON
for unasked in kvcache status_test libkvcache-store.a; do
    if [[ -n $(find "$work/add-subdirectory" -name $unasked -type f) ]]; then
        echo "add_subdirectory built $unasked, which nobody asked for" && exit 1
    fi
done
