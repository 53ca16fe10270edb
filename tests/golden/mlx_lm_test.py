#!/usr/bin/env python3
"""Prompt caches of mlx-lm, and ours as mlx-lm reads them.

    mlx_lm_test.py RESAVE KVCACHE

RESAVE loads a snapshot and saves it again. Files that the installed mlx-lm writes, and those of
KVC_SHARED_DIR that it can read, must be equal for it when saved again: tensors to the bit, numbers,
classes, metadata. What the program KVCACHE converts must be what mlx-lm converts. Exits 77 where mlx and mlx-lm are not installed; KVC_MLX_PYTHON names an
interpreter that has them.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

if os.environ.get("KVC_MLX_PYTHON", sys.executable) != sys.executable:
    os.execv(os.environ["KVC_MLX_PYTHON"], [os.environ["KVC_MLX_PYTHON"], *sys.argv])
sys.dont_write_bytecode = True
try:
    import mlx.core as mx
    from mlx_lm.models import cache as mlx
except ImportError as missing:
    print(f"skipped: {missing}; make mlx-lm installs it and runs this")
    sys.exit(77)

mx.set_default_device(mx.cpu)
NEW_FORM = hasattr(mlx.QuantizedKVCache, "keys_and_values")  # from 0.32 on
TEXTS = {"model": "toy", "tokenizer_config": "{}"}
GROWTHS = ["reserve", "chunk", "exact", "map", "paged"]


def numbers(shape, dtype):
    return mx.random.normal(shape).astype(dtype)


def appended(cache, steps, dtype=mx.bfloat16, heads=2, dim=64, value_dim=None, batch=1):
    for n in steps:
        cache.update_and_fetch(
            numbers((batch, heads, n, dim), dtype), numbers((batch, heads, n, value_dim or dim), dtype)
        )
    return cache


def caches():
    """Yields (name, list of layers) of every kind that both sides have."""
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        yield f"kv {dtype}", [appended(mlx.KVCache(), [9], dtype), appended(mlx.KVCache(), [9], dtype)]
    yield "kv long", [appended(mlx.KVCache(), [300, 1, 1])]
    yield "kv large", [appended(mlx.KVCache(), [9000], heads=4)]  # data on a page of its own
    yield "kv batch", [appended(mlx.KVCache(), [5], batch=3, value_dim=32)]
    yield "many layers", [appended(mlx.KVCache(), [3]) for _ in range(12)]
    for bits in (2, 3, 4, 6, 8):
        for group in (32, 64):
            yield f"packed {bits} {group}", [appended(mlx.QuantizedKVCache(group, bits), [7, 1])]
    for keep in (0, 2):
        for steps in ([3], [8], [10], [10, 1], [10, 1, 1, 1], [3, 1, 4, 9], [1] * 30, [10] + [1] * 6):
            yield f"rotating {keep} {steps}", [appended(mlx.RotatingKVCache(8, keep), steps)]
    yield "rotating trimmed", [appended(mlx.RotatingKVCache(8, 2), [6])]
    yield "mixture", [
        appended(mlx.KVCache(), [10, 1]),
        appended(mlx.RotatingKVCache(8, 2), [10, 1]),
        appended(mlx.QuantizedKVCache(32, 4), [10, 1]),
    ]
    yield "lists", [pair() for _ in range(11)]
    yield "lists of one, of any kind, and layers without", [
        mlx.CacheList(appended(mlx.KVCache(), [10, 1])),
        appended(mlx.RotatingKVCache(8, 2), [10, 1, 1]),
        mlx.CacheList(
            appended(mlx.QuantizedKVCache(32, 4), [10, 1]),
            appended(mlx.RotatingKVCache(8, 2), [10, 1]),
            appended(mlx.KVCache(), [10, 1], mx.float16, 1, 32, 96),
        ),
    ]
    yield "lists in lists", [
        mlx.CacheList(pair(), appended(mlx.KVCache(), [3]), mlx.CacheList(mlx.CacheList(pair()))),
        appended(mlx.KVCache(), [3]),
    ]
    yield "lists of a batch", [
        mlx.CacheList(
            appended(mlx.KVCache(), [5], batch=3),
            appended(mlx.QuantizedKVCache(32, 8), [5], batch=3),
        )
    ]


def pair():
    return mlx.CacheList(appended(mlx.KVCache(), [3]), appended(mlx.KVCache(), [3], heads=1, dim=32))


def refused():
    """Yields (list of layers, words of the sentence) that no cache of ours is."""
    arrays = mlx.ArraysCache(size=1)
    arrays[0] = mx.zeros((1, 4))
    yield [mlx.CacheList(arrays, pair())], "layer 0.0 is a ArraysCache; it has no keys and values"
    chunked = appended(mlx.ChunkedKVCache(16), [3])
    yield [mlx.CacheList(pair(), chunked)], "layer 0.1 is a ChunkedKVCache; save a KVCache"
    yield [appended(mlx.ConcatenateKVCache(), [3])], "layer 0 is a ConcatenateKVCache; save a KVCache"


def leaves(layers):
    """All caches in order, those of lists in the place of the list."""
    for layer in layers:
        if isinstance(layer, mlx.CacheList):
            yield from leaves(layer.caches)
        else:
            yield layer


def tree(layers):
    return [
        [type(x).__name__, tree(x.caches)] if isinstance(x, mlx.CacheList) else type(x).__name__
        for x in layers
    ]


def plain(value):
    """A state as something that can be compared."""
    if isinstance(value, mx.array):
        bits = mx.contiguous(value).view(mx.uint8) if value.ndim and value.size else value
        return (str(value.dtype), tuple(value.shape), bits.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def cut(layer):
    """The rows in use: from 0.32 on mlx-lm saves spare rows too."""
    rows = layer.keys[0].shape[2] if isinstance(layer.keys, (list, tuple)) else layer.keys.shape[2]
    used = min(layer.offset, rows)

    def some(x):
        return [some(y) for y in x] if isinstance(x, (list, tuple)) else x[..., :used, :]

    rest = {k: v for k, v in vars(layer).items() if k not in ("keys", "values")}
    return type(layer).__name__, plain(some(layer.keys)), plain(some(layer.values)), rest


def resave(program, source, target, growth):
    ended = subprocess.run(
        [program, source, target, str(int(NEW_FORM)), growth], capture_output=True, text=True
    )
    return ended.stderr if ended.returncode else None


def check(program, name, source, target):
    before, texts = mlx.load_prompt_cache(source, return_metadata=True)
    windows = any(isinstance(layer, mlx.RotatingKVCache) for layer in leaves(before))
    for growth in GROWTHS:
        failed = resave(program, source, target, growth)
        if growth == "paged" and windows:
            assert failed and "specs" in failed, (name, failed)
            continue
        assert not failed, (name, growth, failed)
        after, found = mlx.load_prompt_cache(target, return_metadata=True)
        assert tree(after) == tree(before), (name, growth, tree(after))
        cuts = [[cut(layer) for layer in leaves(layers)] for layers in (after, before)]
        assert cuts[0] == cuts[1], (name, growth)
        assert found.pop("kvc")["format"] == "1", (name, growth)
        assert found == texts, (name, growth, found)
        for a, b in zip(leaves(after), leaves(before)):  # and both go on in the same way
            if a.keys is not None:
                dim = 16 if not isinstance(b, mlx.QuantizedKVCache) else 64
                if not isinstance(b, mlx.QuantizedKVCache):
                    dim = b.keys.shape[3]
                    shape = (*b.keys.shape[:2], 1, dim)
                    new = numbers(shape, b.keys.dtype)
                    wide = numbers((*b.values.shape[:2], 1, b.values.shape[3]), b.values.dtype)
                    assert plain(a.update_and_fetch(new, wide)) == plain(
                        b.__class__.update_and_fetch(copy_of(b), new, wide)
                    ), (name, growth)


def copy_of(layer):
    """A layer whose update leaves the other as it is."""
    new = type(layer).__new__(type(layer))
    vars(new).update(vars(layer))
    new.keys, new.values = mx.array(layer.keys), mx.array(layer.values)
    return new


def convert(kvcache, source, target, kind):
    """What mlx-lm reads of a file that the program converted, and found in order."""
    convert = ["convert", "--force", "--cache", kind, source, target]
    for command in convert, ["inspect", "--verify", target]:
        subprocess.run([kvcache, *command], check=True, stdout=subprocess.DEVNULL)
    return mlx.load_prompt_cache(target)


def check_conversions(kvcache, source, target):
    """Packed as mlx-lm packs, unpacked as MLX does, the last of a window."""
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        layers = [appended(mlx.KVCache(), [70, 1], dtype), appended(mlx.KVCache(), [70, 1], dtype)]
        mlx.save_prompt_cache(source, layers, TEXTS)
        for bits in (2, 3, 4, 6, 8):
            for group in (32, 64):
                packed = convert(kvcache, source, target, f"q{bits}:{group}")
                wanted = [x.to_quantized(group_size=group, bits=bits) for x in layers]
                assert [cut(x) for x in packed] == [cut(x) for x in wanted], (dtype, bits, group)
                unpacked = convert(kvcache, target, target, "reserve")
                for x, y in zip(unpacked, wanted):
                    for a, b in ((x.keys, y.keys), (x.values, y.values)):
                        words, *scaling = b  # in f32: MLX rounds each step to a half type
                        scaling = [z.astype(mx.float32) for z in scaling]
                        b = mx.dequantize(words, *scaling, group, bits)[..., : y.offset, :]
                        found = plain(a[..., : y.offset, :])
                        assert found == plain(b.astype(dtype)), (dtype, bits, group)
        for x, y in zip(convert(kvcache, source, target, "window:8:2"), layers):
            assert type(x) is mlx.RotatingKVCache and (x.keep, x.max_size, x.offset) == (2, 8, 71)
            for a, b in ((x.keys, y.keys), (x.values, y.values)):
                b = mx.concatenate([b[..., :2, :], b[..., 65:71, :]], axis=2)
                assert plain(x._temporal_order(a)) == plain(b), dtype


def main():
    program, kvcache = sys.argv[1:]
    golden = sorted((Path(os.environ.get("KVC_SHARED_DIR", "")) / "golden/mlx-lm").glob("*.safetensors"))
    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/from.safetensors", f"{folder}/to.safetensors"
        count = 0
        for name, layers in caches():
            mlx.save_prompt_cache(source, layers, TEXTS)
            check(program, name, source, target)
            count += 1
        for layers, words in refused():
            mlx.save_prompt_cache(source, layers)
            failed = resave(program, source, target, "reserve")
            assert failed and words in failed, (words, failed)
        for file in golden:
            if NEW_FORM or file.name.startswith("quantize_"):
                continue  # they are of the form of 0.31
            check(program, file.name, str(file), target)
            count += 1
        check_conversions(kvcache, source, target)
    print(f"{count} files and 33 conversions, as mlx-lm {'from 0.32 on' if NEW_FORM else 'up to 0.31'} has them")


main()
