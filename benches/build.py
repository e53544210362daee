#!/usr/bin/env python3
"""Times what a new user waits for: the first build of the command, the first build of a program that has the CPU alone, the time from an edit to
its run, and `cargo check` of the workspace after an edit of core. It works on a clone in a folder of its own, with crates already downloaded,
and prints one line of JSON a measurement: seconds on the clock, and seconds of all processors. It also counts crates and the bytes of the command.

    python3 benches/build.py [FOLDER]
"""

import json, os, pathlib, resource, shutil, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent

def program():
    """The program of the README."""
    return (ROOT / "README.md").read_text().split("```rust\n")[1].split("```")[0]


def timed(name, command, folder):
    """Runs a command, and prints how long it took."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE if "-q" in command else None)
    clock, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    processors = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"measured": name, "clock_s": round(clock, 1), "processor_s": round(processors, 1), "processors": os.cpu_count()}), flush=True)


def count(name, arguments, folder):
    """Counts the crates that a build compiles: different names and versions."""
    tree = ["cargo", "tree", "--offline", "--edges", "normal", "--prefix", "none", *arguments]
    lines = subprocess.run(tree, cwd=folder, check=True, capture_output=True, text=True).stdout.splitlines()
    print(json.dumps({"measured": name, "crates": len({tuple(line.split()[:2]) for line in lines})}), flush=True)


def edit(file):
    """Adds a line to a file: a private constant, so that the compiler has work to do."""
    with open(file, "a") as text:
        text.write(f"\n#[allow(dead_code)]\nconst EDITED_{time.monotonic_ns()}: u8 = 0;\n")


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="isograd-build-"))
    clone, own = folder / "isograd", folder / "program"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    subprocess.run(["cargo", "fetch", "--quiet"], cwd=clone, check=True)

    count("crates of a program with the CPU alone", ["-p", "isograd", "--no-default-features", "--features", "cpu"], clone)
    count("crates of a program with the default features", ["-p", "isograd"], clone)
    count("crates of the command", ["-p", "isograd-cli"], clone)

    timed("first `cargo run --release -- train digits`", ["cargo", "run", "--offline", "--release", "--", "train", "digits"], clone)
    timed("first `cargo check --workspace`", ["cargo", "check", "--offline", "--workspace"], clone)
    edit(clone / "crates/core/src/tape/mod.rs")
    timed("`cargo check --workspace` after an edit of core", ["cargo", "check", "--offline", "--workspace"], clone)

    (own / "src").mkdir(parents=True)
    (own / "Cargo.toml").write_text(
        '[package]\nname = "program"\nversion = "0.1.0"\nedition = "2024"\n\n[dependencies]\n'
        f'isograd = {{ path = "{clone}/crates/isograd", default-features = false, features = ["cpu"] }}\n')
    (own / "src/main.rs").write_text(program())
    shutil.copy(clone / "Cargo.lock", own / "Cargo.lock")
    timed("first `cargo run` of a program with the CPU alone", ["cargo", "run", "--offline"], own)
    edit(own / "src/main.rs")
    timed("`cargo run` after an edit of that program", ["cargo", "run", "--offline"], own)
    timed("first `cargo run --release` of that program", ["cargo", "run", "--offline", "--release"], own)
    edit(own / "src/main.rs")
    timed("`cargo run --release` after an edit of that program", ["cargo", "run", "--offline", "--release"], own)

    binary = clone / "target/release/isograd"
    stripped = folder / "isograd-stripped"
    subprocess.run(["strip", "-o", str(stripped), str(binary)], check=True)
    print(json.dumps({"measured": "the stripped command", "bytes": stripped.stat().st_size}))
    if len(sys.argv) < 2:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
