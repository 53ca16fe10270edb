"""stories260K, at temperature 0, writes what llama2.c writes, byte for byte.

    stories_test.py PROGRAM

The model and its texts lie in KVC_SHARED_DIR; without them this is skipped (exit status 77). With
KVC_TEST_QUICK in the environment it tries fewer caches and guesses."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "build/kvcache"
FOLDER = Path(os.environ.get("KVC_SHARED_DIR", "../shared")) / "models" / "stories260K"
QUICK = bool(os.environ.get("KVC_TEST_QUICK"))
CACHES = ["chunk", "paged:16"] if QUICK else \
    ["concat", "chunk", "reserve", "paged", "paged:16", "window:512"]
GUESSES = ["4"] if QUICK else ["1", "4", "16", "63"]


def generate(*options):
    command = [PROGRAM, "generate", FOLDER / "stories260K.bin", "--tokenizer",
               FOLDER / "tok512.bin", "--temperature", "0", "--quiet", *options]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout


class Stories(unittest.TestCase):
    def test_the_text_is_that_of_llama2c_under_every_cache(self):
        for steps in 100, 256:
            wanted = (FOLDER / f"greedy{steps}.txt").read_bytes()
            for cache in CACHES:
                with self.subTest(steps=steps, cache=cache):
                    self.assertEqual(generate("--steps", str(steps), "--cache", cache), wanted)

    def test_a_small_chunk_changes_nothing(self):
        wanted = (FOLDER / "greedy256.txt").read_bytes()
        for cache in CACHES:
            self.assertEqual(generate("--steps", "256", "--cache", cache, "--chunk", "16"), wanted)

    def test_a_prompt_computed_at_once_is_continued_as_if_one_by_one(self):
        """The model's own words as the prompt: it must go on as it did. Cut where a word ends, so
        that the tokens are the same; the longer ones take several forwards."""
        wanted = (FOLDER / "greedy256.txt").read_bytes()
        words = wanted.decode().split(" ")
        for count in 1, 2, 20, 60, 110:
            prompt = " ".join(words[:count])
            with self.subTest(prompt=prompt):
                self.assertEqual(generate("--prompt", prompt), wanted)

    def test_guesses_change_nothing(self):
        for steps in 100, 256:
            wanted = (FOLDER / f"greedy{steps}.txt").read_bytes()
            for count in GUESSES:
                for cache in CACHES:
                    with self.subTest(steps=steps, count=count, cache=cache):
                        self.assertEqual(generate("--steps", str(steps), "--speculate", count,
                                                  "--cache", cache), wanted)

    def test_every_continuation_is_the_text(self):
        """At temperature 0 the seed makes no difference."""
        wanted = (FOLDER / "greedy256.txt").read_bytes()
        texts = generate("--steps", "256", "--parallel", "3", "--cache", "paged")
        heads = [f"--- continuation {i}, seed {i}\n".encode() for i in (1, 2, 3)]
        self.assertEqual(texts, b"\n".join(head + wanted for head in heads))

    def test_the_whole_context_can_be_filled(self):
        for cache in CACHES:
            text = generate("--steps", "512", "--cache", cache)
            self.assertEqual(text, generate("--steps", "512"))
            self.assertTrue(text.startswith((FOLDER / "greedy256.txt").read_bytes()[:-1]))


if __name__ == "__main__":
    if not (FOLDER / "stories260K.bin").is_file():
        print(f"skipped: no {FOLDER}/stories260K.bin")
        sys.exit(77)
    unittest.main()
