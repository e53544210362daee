#!/bin/sh
# Builds the forwarding library into a folder, target/hip-on-cuda if none is given.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../target/hip-on-cuda}
mkdir -p "$out"
"${CXX:-c++}" -std=c++17 -O2 -Wall -Wextra -fPIC -fvisibility=hidden -shared "$here/hip_on_cuda.cpp" -o "$out/libamdhip64.so" -ldl
ln -sf libamdhip64.so "$out/libhiprtc.so"
