#!/usr/bin/env bash
# `benches/several_devices.sh [RANKS] [PROGRAM]`: what several GPUs of this host do, with one process for each, beside PyTorch's
# DistributedDataParallel. Needs mpirun; NCCL or RCCL; `python3` (or $PYTHON) with torch, or PYTHON=none. PROGRAM is the example
# several_devices where it was built before. KIND (cuda) is the kind of device and OPTIONS goes to both programs: `KIND=cpu OPTIONS=--small`
# tries the script on processors. PARTS are the parts of the program.
set -uo pipefail
cd "$(dirname "$0")/.."
ranks="${1:-2}"
program="${2:-target/release/examples/several_devices}"
kind="${KIND:-cuda}"
parts="${PARTS:-values,losses,trainer,bandwidth,gpt2,resnet,fsdp}"
python="${PYTHON:-python3}"
read -r -a options <<< "${OPTIONS:-}"
# Multicast of NVLink is not there in many containers, and NCCL would wait for it.
export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if [[ $# -lt 2 ]]; then
    cargo build --release --quiet -p isograd --example several_devices || exit 1
fi
start="$SECONDS"
status=0

said() {
    echo "== $* ($((SECONDS - start)) s)"
}

said "isograd, $ranks ranks"
mpirun --oversubscribe --bind-to none -n "$ranks" "$program" --device "$kind" --only "$parts" "${options[@]}" || status=1
said "a killed rank"
# The launcher ends the others at once unless it is told to go on.
timeout 60 mpirun --oversubscribe --bind-to none --enable-recovery -n "$ranks" "$program" --device "$kind" --only kill --timeout 8 "${options[@]}" 2>&1 |
    grep -v '^-*$' | head -n 30
if [[ "$python" != none ]]; then
    said "PyTorch, $ranks ranks"
    torch=("$python" benches/several_devices_torch.py --device "$kind" "${options[@]}")
    pids=()
    for ((rank = 0; rank < ranks; rank++)); do
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT="${MASTER_PORT:-29511}" "${torch[@]}" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=1; done
fi
said "done"
exit "$status"
