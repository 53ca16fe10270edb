#!/usr/bin/env python3
"""Writes the first inputs of the fuzz targets.

    make_seeds.py FOLDER    makes FOLDER/<target>/ for each of them"""

import json
import math
import struct
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import tiny_model  # noqa: E402

SHAPES = [(4, 4, 1, 2, 1, 4, 2), (4, 4, 2, 2, 2, -4, 2), (2, 1, 1, 1, 1, 1, 1)]
TEXTS = ["", "the then", "H\u00e9l\u00e8ne \u6f22", " the a an the" * 9, "\x1b\n<0x41>"]


def checkpoints():
    for shape in SHAPES:
        data = tiny_model.checkpoint(shape)
        yield data
        yield data[:-1]
    yield struct.pack("<7i", *[2**30] * 3, 2**29, 1, 2**30, 2**30)


def tokenizers():
    for text in map(str.encode, TEXTS):
        for size in 275, 280:
            data = struct.pack("<HH", size, len(text)) + text + tiny_model.tokenizer(size)
            yield data
            yield data[:-1]


def snapshots():
    """Metadata and tensors of prompt caches: each class, lists in both forms, keys per channel."""
    rows, scales, words = ("F16", [1, 1, 2, 32]), ("F16", [1, 1, 2, 1]), ("U32", [1, 1, 2, 4])
    packed = {f"0.{side}.{part}": scales if part else words for side in range(2) for part in range(3)}
    yield {"2.0": "KVCache", "0.0": "", "1.model": "m"}, {"0.0": rows, "0.1": rows}
    yield {"2.0": "QuantizedKVCache", "0.0.0": "2", "0.0.1": "32", "0.0.2": "4"}, packed
    yield ({"2.0": "RotatingKVCache", "0.0.0": "0", "0.0.1": "2", "0.0.2": "3", "0.0.3": "1"},
           {"0.0": rows, "0.1": rows})
    yield ({"2.0": "CacheList", "0.0.0.0": "KVCache", "0.0.0.1": "CacheList", "0.0.1.1.0.0": "KVCache"},
           {"0.0.0": rows, "0.0.1": rows, "0.1.0.0": rows, "0.1.0.1": rows})
    yield ({"2.0": "", "1.0": "CacheList", "2.1.0": "0.0.0.2", "2.1.1": "scalar", "2.2.0": "0.0.1",
            "2.2.1": "string"},
           {"0.0.0.0": rows, "0.0.0.1": rows, "0.0.0.2": ("I32", []),
            "0.0.1": ("I32", [7], "KVCache")})
    numbers = ["0", "0", "4", "32", "3", "2", "0"]
    yield ({"2.0": "KvcCache", **{f"0.0.{i}": n for i, n in enumerate(numbers)}},
           {"0.0.0": ("U32", [1, 1, 1, 128]), "0.0.1": ("F16", [1, 1, 1, 32]),
            "0.0.2": ("F16", [1, 1, 1, 32]), "0.1.0": ("U32", [1, 1, 32, 4]),
            "0.1.1": ("F16", [1, 1, 32, 1]), "0.1.2": ("F16", [1, 1, 32, 1]),
            "0.2": ("F16", [1, 1, 64, 32])})


def safetensors():
    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    headers = [
        ({}, 0),
        ({"__metadata__": None, "a": entry("F32", [1, 2], 0, 8)}, 8),
        ({"1.0": entry("BF16", [1, 1, 3, 2], 8, 20), "0.0": entry("I64", [], 0, 8),
          "e": entry("F8_E4M3", [4, 0], 8, 8),
          "__metadata__": {"2.0": "KVCache", "\u00e9\u6f22": "\"\\\n"}}, 20),
        ({"q": entry("F4", [2, 3], 0, 3), "b": entry("BOOL", [1], 3, 4)}, 4),
        ({"__metadata__": {"kvc.xxh3.header": "7" * 32, "kvc.xxh3.tensors": "0" * 32},
          "a": entry("U8", [1], 0, 1)}, 1),
        ({"a": entry("U32", [2**31, 2**31], 0, 2**62)}, 0),
    ]
    for header, size in headers:
        for ascii_only in True, False:
            text = json.dumps(header, ensure_ascii=ascii_only,
                              separators=(",", ":")).encode() + b" " * 3
            data = text + bytes(range(size))
            yield bytes([1, size]) + data
            yield bytes([3, size]) + data
            yield bytes([0, 0]) + struct.pack("<Q", len(text)) + data
    for metadata, tensors in snapshots():
        header, content = {"__metadata__": metadata}, b""
        for name, (dtype, shape, *characters) in tensors.items():
            at = len(content)
            content += "".join(characters).encode("utf-32-le")
            content = content.ljust(at + (2 if dtype == "F16" else 4) * math.prod(shape), b"\0")
            header[name] = entry(dtype, shape, at, len(content))
        text = json.dumps(header, separators=(",", ":")).encode()
        yield bytes([0, 0]) + struct.pack("<Q", len(text)) + text + content
    # As the library writes it: docs/FORMAT.md has this file.
    text = ('{"__metadata__":{"kvc.xxh3.header":"16f0fec7290b83cce8792bf64a6d506e",'
            '"kvc.xxh3.tensors":"49a04899597a3567537653a0d9955b86bbf01262d3ba2a4b5b65fa69210d0f3d",'
            '"note":"two tensors"},'
            '"c":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]},'
            '"ab":{"dtype":"BF16","shape":[3],"data_offsets":[4,10]}}').ljust(312).encode()
    yield bytes([1, 10]) + text + bytes([1, 2, 3, 4, 0x80, 0x3f, 0, 0x40, 0x40, 0x40])


def tier_values():
    prints = (b"\x5f" + bytes(31), b"\x6b" + bytes(31))
    for payload in b"", b"x", bytes(range(256)) * 3:
        for size in len(payload), len(payload) + 1:
            for parts in prints, prints[::-1]:
                # The target makes the checksums right: Python has no XXH3.
                yield (b"KVCBLOCK" + struct.pack("<IIQ", 1, 128, size) + b"".join(parts) +
                       bytes(40) + payload)
    # docs/FORMAT.md's, whose checksums are right, and whose fingerprint and key are others.
    yield bytes.fromhex("4b5643424c4f434b010000008000000007000000000000000001020304050607"
                        "08090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021222324252627"
                        "28292a2b2c2d2e2f303132333435363738393a3b3c3d3e3fbb9e51e629cd3bf3"
                        "657e6b84f18c69eb0000000000000000635087a8ea31f8a987b4a792cd76db71"
                        ) + b"kvcache"


def write(folder, inputs):
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs):
        (folder / f"seed{number}").write_bytes(data)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(Path(sys.argv[1]) / "checkpoint_fuzz", checkpoints())
    write(Path(sys.argv[1]) / "safetensors_fuzz", safetensors())
    write(Path(sys.argv[1]) / "tier_value_fuzz", tier_values())
    write(Path(sys.argv[1]) / "tokenizer_fuzz", tokenizers())
