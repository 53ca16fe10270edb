"""What the tests of the program share: PROGRAM, and a base class that runs it."""

import json
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
PROGRAM = str(Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/kvcache").resolve())


def prompt_cache(path, classes, numbers, tensors, texts=()):
    """A file as mlx-lm up to 0.31 writes it, of zeros."""
    metadata = {f"2.{i}": name for i, name in enumerate(classes)} | numbers
    metadata |= {f"1.{key}": text for key, text in texts}
    header, at = {"__metadata__": metadata}, 0
    for name, (dtype, size, shape) in tensors.items():
        end = at + size * shape[0] * shape[1] * shape[2] * shape[3]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_program(self, *words, **more):
        more.setdefault("capture_output", True)
        return subprocess.run([PROGRAM, *map(str, words)], text=True, check=False, timeout=50, **more)

    def printed(self, *words, **more):
        """stdout of a run that must succeed without a word on stderr."""
        done = self.run_program(*words, **more)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def parsed(self, *words):
        """The one JSON object on stdout."""
        return json.loads(self.printed(*words, "--json"))

    def assert_refused(self, status, command, words, *expected, **more):
        """One line on stderr, which begins with the command and has what is expected; nothing on
        stdout; no file left."""
        done = self.run_program(*command.split(), *words, **more)
        line = done.stderr
        self.assertEqual((done.returncode, done.stdout), (status, ""), line)
        self.assertEqual(line.count("\n"), 1, line)
        self.assertTrue(line.startswith(("kvcache " + command).rstrip() + ": "), line)
        self.assertTrue(line.endswith("\n"), line)
        if status == 2:
            self.assertIn("; try 'kvcache", line)
        for text in expected:
            self.assertIn(str(text), line)
        self.assertEqual(list(self.folder.iterdir()), [])

    def read_trace(self, path):
        """The spans and the names of the tracks of a trace, after checking its form."""
        events = json.loads(path.read_text())["traceEvents"]
        tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        spans = [e for e in events if e["ph"] == "X"]
        self.assertEqual({e["ph"] for e in events}, {"M", "X"})
        for span in spans:
            self.assertGreaterEqual(span["ts"], 0)
            self.assertGreaterEqual(span["dur"], 0)
            self.assertIn(span["tid"], tracks)
            self.assertIn(span["cat"], ["allocate", "release", "commit", "copy", "fill", "kernel",
                                        "step"])
        return spans, tracks
