#!/usr/bin/env python3
"""Writes the first inputs of the fuzz targets.

    make_seeds.py FOLDER    makes FOLDER/checkpoint_fuzz/ and FOLDER/tokenizer_fuzz/"""

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


def write(folder, inputs):
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs):
        (folder / f"seed{number}").write_bytes(data)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(Path(sys.argv[1]) / "checkpoint_fuzz", checkpoints())
    write(Path(sys.argv[1]) / "tokenizer_fuzz", tokenizers())
