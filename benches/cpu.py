#!/usr/bin/env python3
"""Times isograd on the CPU beside PyTorch, eager and compiled, on the same number of threads. Runs alternate, and the best of each counts. Prints
tables of ratios, isograd's time over PyTorch's: below 1, isograd is faster.

    python3 benches/cpu.py steps [NETWORK ..] [--threads N] [--rounds N] [--compile] [--candle]
    python3 benches/cpu.py rows [--filter RE] [--threads N] [--rounds N]

Needs torch. `steps` are training steps: of crates/isograd/examples/training_step.rs and of steps_torch.py; with --candle, also the MLP of candle. `rows`
are the ops of the registry at a million elements, as `isograd parity --speeds` and ops_torch.py measure them. Another set of instructions is tried on
the same processor with `ISOGRAD=` and `TORCH=`, prefixes of the two commands: `TORCH="env ATEN_CPU_CAPABILITY=avx2"`.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = "mlp cnn resnet18 mobilenet gpt lstm gru gcn table".split()


def output(command, env=None):
    return subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


def prefix(name):
    return shlex.split(os.environ.get(name, ""))


def where(threads):
    """The processor, the threads and the commit."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), "unknown processor")
    return f"{model}, {threads} threads, commit {output(['git', 'rev-parse', '--short', 'HEAD']).strip()}"


def steps(args, env):
    build = ["cargo", "build", "--release", "--quiet"]
    output([*build, "-p", "isograd", "--example", "training_step"])
    if args.candle:
        output([*build, "--manifest-path", "benches/candle/Cargo.toml"], os.environ | {"CARGO_TARGET_DIR": "target/candle"})
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    print(where(args.threads))
    print("| step | isograd, ms | of eager | of compiled |\n|---|---:|---:|---:|")
    best_of_both = []
    for network in args.networks or NETWORKS:
        torch = [*prefix("TORCH"), sys.executable, "benches/steps_torch.py", network, "--threads", str(args.threads)]
        commands = [[*prefix("ISOGRAD"), f"{target}/release/examples/training_step", network], torch]
        commands += [[*torch, "--compile"]] if args.compile else []
        commands += [["target/candle/release/isograd-bench-candle"]] if args.candle and network == "mlp" else []
        best = {}
        for _ in range(args.rounds):
            for command in commands:
                row = json.loads(output(command, env).splitlines()[-1])
                best[row["framework"]] = min(row["step_ms"], best.get(row["framework"], float("inf")))
        ours = best.pop("isograd")
        ratios = {name: ours / ms for name, ms in best.items()}
        best_of_both.append(max(ratios[name] for name in ("eager", "compiled") if name in ratios))
        columns = [f"{ratios[name]:.2f}" if name in ratios else "" for name in ("eager", "compiled")]
        candle = f" {ratios['candle']:.2f} of candle" if "candle" in ratios else ""
        print(f"| {network} | {ours:.2f} | {' | '.join(columns)} |{candle}", flush=True)
    print(f"median of the better: {statistics.median(best_of_both):.2f}, worst {max(best_of_both):.2f}")


def rows(args, env):
    output(["cargo", "build", "--release", "--quiet", "-p", "isograd-cli", "--features", "parity"])
    command = f"{os.environ.get('CARGO_TARGET_DIR', 'target')}/release/isograd"
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = f"{folder}/isograd.json", f"{folder}/torch.json"
        for _ in range(args.rounds):
            output([*prefix("ISOGRAD"), command, "parity", "--device", "cpu", "--speeds", "--filter", args.filter, "--json", ours], env)
            torch = [*prefix("TORCH"), sys.executable, "benches/ops_torch.py", ours, "--device", "cpu", "--json", theirs]
            output([*torch, "--threads", str(args.threads), *([] if args.compile else ["--no-compile"])], env)
            for row in json.loads(Path(theirs).read_text()):
                best = found.setdefault((row["op"], row["dtype"], row["pass"]), [float("inf")] * 2)
                best[:] = min(best[0], row["ours"]), min(best[1], row["torch"])
    print(where(args.threads))
    print("| op | dtype | pass | isograd, ms | PyTorch, ms | ratio |\n|---|---|---|---:|---:|---:|")
    for (op, dtype, way), (ours, theirs) in sorted(found.items(), key=lambda item: -item[1][0] / item[1][1]):
        print(f"| {op} | {dtype} | {way} | {1e3 * ours:.3f} | {1e3 * theirs:.3f} | {ours / theirs:.2f} |")
    for dtype in sorted({dtype for _, dtype, _ in found}):
        ratios = sorted(ours / theirs for (_, of, _), (ours, theirs) in found.items() if of == dtype)
        print(f"{dtype}: median {statistics.median(ratios):.2f} of {len(ratios)}, {sum(r > 1 / 0.6 for r in ratios)} above 1.67")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "rows"])
    parser.add_argument("networks", nargs="*", help=f"{', '.join(NETWORKS)} [default: all]")
    parser.add_argument("--filter", default="", help="only ops whose name this finds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    parser.add_argument("--candle", action="store_true")
    args = parser.parse_args()
    threads = str(args.threads)
    env = os.environ | {"RAYON_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    {"steps": steps, "rows": rows}[args.what](args, env)


if __name__ == "__main__":
    main()
