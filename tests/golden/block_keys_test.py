"""Keys and fingerprints are what docs/FORMAT.md says: computed here from its words alone, and
compared with the library's. The vectors of that document are checked too.

    block_keys_test.py PROGRAM DOCUMENT"""

import hashlib
import random
import re
import struct
import subprocess
import sys
import unittest
from pathlib import Path

PROGRAM, DOCUMENT = sys.argv[1:3]

FORMAT, TENANT, ADAPTER, MODEL, FINGERPRINT, POSITIONS, PARENT, TOKENS, ROPE, LAYER, \
    PACKING = range(1, 12)


def digest(*fields):
    """The SHA-256 of fields (tag, bytes): each a byte, a length of eight, and the bytes."""
    return hashlib.sha256(
        b"".join(struct.pack("<BQ", tag, len(data)) + data for tag, data in fields)).digest()


def layer_fields(heads, key_dim, value_dim, dtype, bits=0, group=0, rotated=0):
    yield LAYER, struct.pack("<4q", heads, key_dim, value_dim, dtype)
    if bits:
        yield PACKING, struct.pack("<3q", bits, group, rotated)


def fingerprint(model, rope, positions, layers):
    return digest((FORMAT, b"kvcache/fingerprint/1"), (MODEL, model), (ROPE, rope),
                  (POSITIONS, struct.pack("<q", positions)),
                  *(field for layer in layers for field in layer_fields(*layer)))


def keys(space, print_, positions, tokens):
    tenant, adapter, model = space
    parent = digest((FORMAT, b"kvcache/namespace/1"), (TENANT, tenant), (ADAPTER, adapter),
                    (MODEL, model), (FINGERPRINT, print_),
                    (POSITIONS, struct.pack("<q", positions)))
    for i in range(len(tokens) // positions):
        block = tokens[i * positions:(i + 1) * positions]
        parent = digest((FORMAT, b"kvcache/block/1"), (PARENT, parent),
                        (TOKENS, struct.pack(f"<{positions}i", *block)))
        yield parent


def run(*words):
    done = subprocess.run([PROGRAM, *map(str, words)], stdout=subprocess.PIPE, text=True,
                          check=True)
    return done.stdout.split()


def library_keys(space, print_, positions, tokens):
    return run("keys", *(part.hex() for part in (*space, print_)), positions, *tokens)


class BlockKeys(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(5)

    def some_bytes(self):
        return self.random.randbytes(self.random.choice([0, 1, 3, 32, 200]))

    def test_keys_are_those_of_the_document_s_words(self):
        for positions in 1, 16, 63, 64, 65, 256:
            space = [self.some_bytes() for _ in range(3)]
            print_ = self.random.randbytes(32)
            tokens = [self.random.randrange(-2**31, 2**31) for _ in range(3 * positions + 1)]
            expected = [key.hex() for key in keys(space, print_, positions, tokens)]
            self.assertEqual(len(expected), 3 + (positions == 1))
            self.assertEqual(library_keys(space, print_, positions, tokens), expected)

    def test_fingerprints_are_those_of_the_document_s_words(self):
        for layers in 1, 2, 9:
            model, rope = self.some_bytes(), self.some_bytes()
            specs = [(self.random.randrange(1, 64), self.random.randrange(1, 512),
                      self.random.randrange(1, 512), self.random.randrange(1, 4),
                      *self.random.choice([(0, 0, 0), (4, 32, 0), (8, 128, 1)]))
                     for _ in range(layers)]
            expected = fingerprint(model, rope, 48, specs).hex()
            got = run("fingerprint", model.hex(), rope.hex(), 48, *(n for s in specs for n in s))
            self.assertEqual(got, [expected])

    def test_the_document_s_vectors_are_right(self):
        found = re.findall(r"\b[0-9a-f]{64}\b", Path(DOCUMENT).read_text(encoding="utf-8"))
        print_ = fingerprint(b"tiny", b"theta=10000", 16, [(2, 64, 64, 3)])
        packed = fingerprint(b"tiny", b"theta=10000", 16, [(2, 64, 64, 3, 4, 32)])
        rotated = fingerprint(b"tiny", b"theta=10000", 16, [(2, 64, 64, 3, 4, 32, 1)])
        vectors = [print_, packed, rotated, *keys((b"alice", b"", b""), print_, 16, range(32)),
                   *keys((b"", b"alice", b""), print_, 16, range(16))]
        for vector in vectors:
            self.assertIn(vector.hex(), found)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
