"""MLX on its CPU backend."""

import functools

import mlx.core as mx
import numpy as np

from case import Form

DTYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}


def prepare(case):
    mx.set_default_device(mx.cpu)


def make(case, attend):
    q, k, v = (mx.array(x[None]).astype(DTYPES[case.dtype]) for x in case.inputs())
    layers = [(k + 0, v + 0) for _ in range(case.layers)]
    hidden = mx.array(case.hidden()) if case.q_len > 1 else None
    mx.eval(q, layers)
    runs = [functools.partial(lambda k, v: mx.eval(attend(q, k, v, hidden)), *kv) for kv in layers]
    return Form(runs, lambda: np.array(attend(q, *layers[0], hidden).astype(mx.float32))[0])


def fast(q, k, v, hidden):
    mask = None if hidden is None else "causal"
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask=mask)


def grouped(q, k, v, hidden, dtype=None):
    """Query heads of a kv head as rows of one product: keys and values are read once."""
    if dtype is not None:
        k, v = k.astype(dtype), v.astype(dtype)
    batch, heads, n, dim = q.shape
    kv_heads = k.shape[1]
    rows = q.reshape(batch, kv_heads, heads // kv_heads * n, dim) * dim**-0.5
    scores = rows.astype(k.dtype) @ k.swapaxes(-1, -2)
    if hidden is not None:
        split = scores.reshape(batch, kv_heads, heads // kv_heads, n, -1)
        scores = mx.where(hidden, -float("inf"), split).reshape(scores.shape)
    weights = mx.softmax(scores, axis=-1, precise=True)
    return (weights @ v).reshape(q.shape)


def grouped_f32(q, k, v, hidden):
    return grouped(q, k, v, hidden, mx.float32)


def forms(case):
    ways = {"fast.scaled_dot_product_attention": fast, "grouped matmul": grouped}
    if case.dtype != "f32":
        ways["grouped matmul in f32"] = grouped_f32
    return {name: functools.partial(make, attend=attend) for name, attend in ways.items()}
