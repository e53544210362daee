#!/bin/sh
# Builds the emulator into a folder, target/simt if none is given: the stand-ins for the drivers, and the tests.
# Nothing is done if the sources and the compiler are those of the last time.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../target/simt}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cxx=${SIMT_CXX:-}
for version in -19 -18 -17 -16 -15 '' -20 -21 -22; do
    [ -n "$cxx" ] && break
    if command -v "clang++$version" >/dev/null; then cxx=clang++$version; fi
done
[ -n "$cxx" ] || { echo "simt: clang++ is missing (apt-get install clang llvm)" >&2; exit 1; }

sources=$(cd "$here" && ls build.sh device/* runtime/* drivers/*)
digest=$( (cd "$here" && cat $sources; "$cxx" --version; uname -m) | cksum | awk '{printf "%08x", $1}')
if [ "$(cat "$out/digest" 2>/dev/null)" != "$digest" ]; then
    rm -rf "$out/device" "$out/digest"
    cp -r "$here/device" "$out/device"
    options="-std=c++17 -O2 -g1 -Wall -Wextra -fPIC -fvisibility-inlines-hidden"
    "$cxx" $options -DSIMT_BUILD="\"$digest\"" -DSIMT_COMPILER="\"$cxx\"" -shared "$here"/runtime/*.cpp -o "$out/libsimt.so" \
        -Wl,-soname,libsimt.so -Wl,--no-as-needed -lm -ldl -lpthread &
    wait_for=$!
    for part in cuda cublaslt hip rocblas collectives driver recording; do
        "$cxx" $options -fvisibility=hidden -c "$here/drivers/$part.cpp" -o "$out/$part.o"
    done
    wait $wait_for
    link() { # SONAME PARTS
        name=$1
        shift
        for part; do set -- "$@" "$out/$part.o"; shift; done
        "$cxx" -shared "$@" "$out/driver.o" "$out/recording.o" -o "$out/$name" -L"$out" -lsimt -Wl,-soname,"$name" -Wl,-rpath,'$ORIGIN'
    }
    link libcuda.so.1 cuda cublaslt collectives
    link libamdhip64.so.6 hip rocblas collectives
    ln -sf libcuda.so.1 "$out/libcuda.so"
    ln -sf libcuda.so.1 "$out/libnvrtc.so"
    ln -sf libcuda.so.1 "$out/libcublasLt.so"
    ln -sf libcuda.so.1 "$out/libnccl.so.2"
    ln -sf libamdhip64.so.6 "$out/libamdhip64.so"
    ln -sf libamdhip64.so.6 "$out/libhiprtc.so"
    ln -sf libamdhip64.so.6 "$out/librocblas.so"
    ln -sf libamdhip64.so.6 "$out/librccl.so.1"
    rm -f "$out"/*.o "$out/test"
    echo "$digest" > "$out/digest"
fi
if [ ! "$out/test" -nt "$here/tests/test.cpp" ]; then
    "$cxx" -std=c++17 -O1 -g1 -Wall -Wextra -DSIMT_TESTS="\"$here/tests\"" "$here/tests/test.cpp" -o "$out/test" -L"$out" -lsimt -ldl \
        -Wl,-rpath,'$ORIGIN'
fi
