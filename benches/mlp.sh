#!/usr/bin/env bash
# One training step of the MLP 784-256-10 on two threads, isograd against PyTorch, in one run.
# Needs `python3` (or $PYTHON) with torch. Runs alternate, and the best median of each counts.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet -p isograd --example mlp_step
ours=() theirs=()
for _ in 1 2 3 4 5; do
    ours+=("$(RAYON_NUM_THREADS=2 target/release/examples/mlp_step)")
    theirs+=("$("${PYTHON:-python3}" benches/mlp_torch.py)")
done
printf '%s\n' "${ours[@]}" "${theirs[@]}" | "${PYTHON:-python3}" -c '
import json, sys
best = {}
for line in sys.stdin:
    row = json.loads(line)
    best[row["framework"]] = min(row["step_ms"], best.get(row["framework"], float("inf")))
for name, ms in best.items():
    print(f"{name}: {ms:.2f} ms a step")
ratio = best["isograd"] / best["pytorch"]
print(f"isograd takes {ratio:.2f} times as long as PyTorch (at most 1.3 is the aim)")'
