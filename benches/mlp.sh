#!/usr/bin/env bash
# One training step of the MLP 784-256-10 on two threads: isograd against PyTorch and, with --candle, candle, in one run.
# Needs `python3` (or $PYTHON) with torch. Runs alternate, and the best median of each counts.
set -euo pipefail
cd "$(dirname "$0")/.."
export RAYON_NUM_THREADS=2
cargo build --release --quiet -p isograd --example mlp_step
commands=(target/release/examples/mlp_step "${PYTHON:-python3} benches/mlp_torch.py")
if [[ "${1:-}" == --candle ]]; then
    CARGO_TARGET_DIR=target/candle cargo build --release --quiet --manifest-path benches/candle/Cargo.toml
    commands+=(target/candle/release/isograd-bench-candle)
fi
for _ in 1 2 3 4 5; do
    for command in "${commands[@]}"; do $command; done
done | "${PYTHON:-python3}" -c '
import json, sys
best = {}
for line in sys.stdin:
    row = json.loads(line)
    best[row["framework"]] = min(row["step_ms"], best.get(row["framework"], float("inf")))
ours = best["isograd"]
for name, ms in best.items():
    print(f"{name}: {ms:.2f} ms a step, isograd takes {ours / ms:.2f} times as long")'
