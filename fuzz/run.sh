#!/bin/sh
# Fuzzes each target for some seconds: fuzz/run.sh [SECONDS [TARGET..]]. A stable toolchain does; the flags instrument every crate for libFuzzer, which
# follows the branches that inputs reach. What fails lies in fuzz/artifacts.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -gt 0 ] && shift
all="safetensors index pytorch gguf onnx npy npz columns csv idx images obj ply tokenizer config cases programs composites"
host=$(rustc -vV | sed -n 's/host: //p')
built=${CARGO_TARGET_DIR:-target/fuzz}
seeds=$built/seeds
# The files that the tests change at random are the first inputs.
if [ ! -d "$seeds" ]; then
    mkdir -p "$seeds"
    ISOGRAD_CORPUS=$(cd "$seeds" && pwd) ISOGRAD_CHANGES=1 cargo test -q --workspace --test changed
fi
[ -e fuzz/Cargo.lock ] || cp Cargo.lock fuzz/Cargo.lock
coverage="-Cpasses=sancov-module"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    coverage="$coverage -Cllvm-args=-sanitizer-coverage-$option"
done
# With a target, build scripts and macros are not instrumented.
RUSTFLAGS="--cfg fuzzing $coverage -Cdebug-assertions -Coverflow-checks" \
    cargo build --manifest-path fuzz/Cargo.toml --target-dir "$built" --release --bins --target "$host"
for target in ${*:-$all}; do
    case $target in
    safetensors) files="safetensors one.safetensors" ;;
    index) files="model.safetensors.index.json" ;;
    pytorch) files="*.pt" ;;
    gguf) files="*.gguf" ;;
    onnx | npy | npz | csv | idx) files="$target*" ;;
    columns) files="*.parquet *.arrow *.feather" ;;
    images) files="png jpeg" ;;
    obj | ply) files="$target*" ;;
    tokenizer) files="tokenizer.json" ;;
    config | cases) files="$target.json" ;;
    *) files="" ;;
    esac
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
    for file in $files; do
        for seed in "$seeds"/$file; do
            [ -f "$seed" ] && cp "$seed" "fuzz/corpus/$target/"
        done
    done
    echo "== $target"
    "$built/$host/release/$target" "fuzz/corpus/$target" -artifact_prefix="fuzz/artifacts/$target/" -max_total_time="$seconds" \
        -timeout=60 -rss_limit_mb=4096 -print_final_stats=1
done
