"""One table of this library and its peers: the same attention, one case after another, in one run.

peers.py [OPTION]...   (see --help; `make peers` sets everything up and runs this)
"""

import argparse
import ctypes.util
import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

from case import Case

HERE = Path(__file__).resolve().parent
PROGRAM = HERE.parent.parent / "build" / "kvcache"
PREFILL_ROTATE_MIB = 64  # prefill is bound by arithmetic

# Peer: the package whose version is told.
PEERS = {
    "mlx": "mlx",
    "torch": "torch",
    "onnxruntime": "onnxruntime",
    "ggml": "libggml-python",
    "ik": "ik-llama-cpp-python",
}


def environment(peer, threads):
    """Huge pages for what peers allocate, and as many threads as they take from outside."""
    env = dict(os.environ, GLIBC_TUNABLES="glibc.malloc.hugetlb=1", GGML_NO_BACKTRACE="1")
    for name in ("OMP", "OPENBLAS", "MKL"):
        env[f"{name}_NUM_THREADS"] = str(threads)
    blas = ctypes.util.find_library("openblas")
    if peer == "mlx" and blas:
        env["LD_PRELOAD"] = blas  # the wheel brings the reference BLAS
    return env


def run_peer(peer, case):
    done = subprocess.run(
        [sys.executable, HERE / "worker.py", peer, json.dumps(dataclasses.asdict(case))],
        capture_output=True,
        check=False,
        text=True,
        env=environment(peer, case.threads),
    )
    if done.returncode:
        return {"skipped": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    return json.loads(done.stdout)


def run_ours(program, case):
    words = [program, "bench", "attend", "--json", "--heads", f"{case.q_heads}/{case.kv_heads}"]
    for name in ("dim", "dtype", "threads", "q_len"):
        words += ["--" + name.replace("_", "-"), str(getattr(case, name))]
    words += ["--contexts", str(case.context), "--rotate", str(case.rotate_mib)]
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    if done.returncode:
        return {"skipped": done.stderr.strip()}
    [row] = json.loads(done.stdout)["rows"]
    limit = {
        "read": f"read floor, {row['floor_gbps']:.1f} GB/s",
        "fma": f"FMA ceiling, {row['ceiling_gflops']:.0f} GFLOP/s",
    }[row["binds"]]
    return {
        "form": f"{row['path']}: {row['of']:.2f} of the {limit}",
        "p50_ms": row["p50_us"] / 1e3,
        "best_ms": row["best_us"] / 1e3,
        "runs": row["runs"],
    }


def list_of(kind):
    return lambda text: [kind(part) for part in text.split(",")]


def pair_of(text):
    """Two whole numbers above 0, as 32/8."""
    parts = text.split("/")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"'{text}' given, two whole numbers as 32/8 wanted")
    return tuple(map(int, parts))


def prefill_of(text):
    return None if text == "none" else pair_of(text)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--peers", type=list_of(str), default=list(PEERS), help="of " + ",".join(PEERS))
    add("--contexts", type=list_of(int), default=[4096, 16384, 65536], help="of decoding")
    add("--dtypes", type=list_of(str), default=["bf16", "f16", "f32"])
    add("--threads", type=list_of(int), default=[1, 2])
    add("--prefill", type=prefill_of, default="512/4096", help="queries/context, or none (512/4096)")
    add("--heads", type=pair_of, default="32/8")
    add("--dim", type=int, default=128)
    add("--rotate", type=int, default=512, help="MiB of keys and values, at least (512)")
    add("--program", default=PROGRAM, help="build/kvcache")
    add("--json", metavar="FILE", help="write the results there too")
    given = parser.parse_args()
    for peer in given.peers:
        if peer not in PEERS:
            parser.error(f"--peers: '{peer}' given, of {','.join(PEERS)} wanted")
    return given


def cases(given):
    q_heads, kv_heads = given.heads
    common = {"q_heads": q_heads, "kv_heads": kv_heads, "dim": given.dim}
    shapes = [(1, context, given.rotate) for context in given.contexts]
    if given.prefill:
        shapes.append((*given.prefill, PREFILL_ROTATE_MIB))
    for q_len, context, rotate in shapes:
        for dtype in given.dtypes:
            for threads in given.threads:
                yield Case(context, dtype, threads, q_len, rotate_mib=rotate, **common)


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


HEADER = "{:>12} {:>4} {:>7}  {:<11} {:>9} {:>9} {:>7} {:>7} {:>7} {:>8}  {}"


def print_row(case, name, told, ours):
    shape = f"{case.q_len}/{case.context}", case.dtype, case.threads
    if "skipped" in told:
        print(HEADER.format(*shape, name, *["-"] * 6, told["skipped"]), flush=True)
        return
    ms = told["p50_ms"]
    error = f"{told['error']:.0e}" if "error" in told else "-"
    times = f"{ms / ours['p50_ms']:.2f}" if "p50_ms" in ours else "-"
    rates = f"{case.kv_bytes / ms / 1e6:.3g}", f"{case.flops / ms / 1e6:.3g}"
    figures = f"{ms:.3f}", f"{told['best_ms']:.3f}", *rates, times, error
    print(HEADER.format(*shape, name, *figures, told["form"]), flush=True)


def main():
    given = arguments()
    print("Causal attention, query heads/kv heads", given.heads, "dimension", given.dim)
    print("; ".join(f"{peer}: {package} {version(package)}" for peer, package in PEERS.items()))
    print(
        HEADER.format(
            "queries/keys",
            "type",
            "threads",
            "",
            "p50 ms",
            "best ms",
            "GB/s",
            "GFLOP/s",
            "x ours",
            "error",
            "form",
        )
    )
    results = []
    for case in cases(given):
        ours = run_ours(given.program, case)
        for name in ("libkvcache", *given.peers):
            told = ours if name == "libkvcache" else run_peer(name, case)
            print_row(case, name, told, ours)
            results.append({"peer": name, **dataclasses.asdict(case), **told})
        print()
    print(
        "x ours: the median over this library's. error: the largest of some rows, by f64.\n"
        "Runs go from layer to layer, over",
        given.rotate,
        "MiB at least.",
    )
    if given.json:
        versions = {peer: version(package) for peer, package in PEERS.items()}
        text = json.dumps({"versions": versions, "rows": results}, indent=2)
        Path(given.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
