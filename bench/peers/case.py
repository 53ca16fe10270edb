"""One case: a shape of attention, its inputs, the truth of some of its outputs, and its timing."""

import dataclasses
import itertools
import statistics
import time

import numpy as np

LEAST_RUNS = 12
BUDGET_S = 1.0
MOST_S = 8


@dataclasses.dataclass(frozen=True)
class Case:
    """Causal attention of the last q_len positions of one sequence of `context`."""

    context: int
    dtype: str  # of keys, values and, where a peer asks for it, queries: f32, f16, bf16
    threads: int
    q_len: int = 1
    q_heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    rotate_mib: int = 512  # keys and values that the runs go over, at least

    @property
    def kv_bytes(self):
        return 2 * self.kv_heads * self.context * self.dim * (4 if self.dtype == "f32" else 2)

    @property
    def layers(self):
        return max(2, -(-(self.rotate_mib << 20) // self.kv_bytes))

    @property
    def flops(self):
        seen = self.q_len * self.context - self.q_len * (self.q_len - 1) // 2
        return 4 * self.q_heads * self.dim * seen

    def inputs(self):
        """q [q_heads][q_len][dim], k and v [kv_heads][context][dim]: f32, as the dtype has it."""
        random = np.random.default_rng(1)
        shapes = [(self.q_heads, self.q_len), *[(self.kv_heads, self.context)] * 2]
        return [
            rounded(random.standard_normal((*s, self.dim), np.float32), self.dtype) for s in shapes
        ]

    def hidden(self):
        """[q_len][context]: the keys that a query must not see."""
        last = np.arange(self.context - self.q_len, self.context)
        return np.arange(self.context)[None, :] > last[:, None]

    def error(self, out):
        """The largest error of some rows of out [q_heads][q_len][dim], by f64."""
        q, k, v = self.inputs()
        group = self.q_heads // self.kv_heads
        worst = 0.0
        for head in {0, self.q_heads - 1}:
            for i in {0, self.q_len - 1}:
                seen = self.context - self.q_len + i + 1
                keys = k[head // group, :seen].astype(np.float64)
                scores = keys @ q[head, i].astype(np.float64) / self.dim**0.5
                weights = np.exp(scores - scores.max())
                want = weights / weights.sum() @ v[head // group, :seen].astype(np.float64)
                worst = max(worst, np.abs(out[head, i] - want).max() / np.abs(want).max())
        return float(worst)


def bf16_words(x):
    """f32 as bf16 words, to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def rounded(x, dtype):
    if dtype == "f16":
        return x.astype(np.float16).astype(np.float32)
    if dtype == "bf16":
        return (bf16_words(x).astype(np.uint32) << 16).view(np.float32)
    return x


@dataclasses.dataclass
class Form:
    """One way of asking a peer: a call for each layer, and what the first layer gave."""

    runs: list
    output: object  # () -> [q_heads][q_len][dim]


def timed(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(form):
    """Seconds of runs that go from layer to layer."""
    samples = []
    form.runs[0]()
    begin = time.perf_counter()
    for run in itertools.cycle(form.runs[1:] + form.runs[:1]):
        samples.append(timed(run))
        spent = time.perf_counter() - begin
        if spent > MOST_S or (spent > BUDGET_S and len(samples) >= LEAST_RUNS):
            return samples


def result(case, name, form):
    """What is told of a form: its times, and how wrong it is."""
    samples = measure(form)
    form.runs[0]()
    return {
        "form": name,
        "p50_ms": 1e3 * statistics.median(samples),
        "best_ms": 1e3 * min(samples),
        "runs": len(samples),
        "error": case.error(np.asarray(form.output(), np.float64)),
    }
