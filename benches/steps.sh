#!/usr/bin/env bash
# `benches/steps.sh [NETWORK] [--candle]`: a training step on two threads, isograd against PyTorch and, for the MLP with --candle,
# candle, in one run. The network is mlp, cnn, resnet18, gpt, lstm or gru. Needs `python3` (or $PYTHON) with torch. Runs alternate, and the best median
# of each counts.
set -euo pipefail
cd "$(dirname "$0")/.."
network="${1:-mlp}"
export RAYON_NUM_THREADS=2
cargo build --release --quiet -p isograd --example training_step
commands=("target/release/examples/training_step $network" "${PYTHON:-python3} benches/steps_torch.py $network")
if [[ "${2:-}" == --candle ]]; then
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
