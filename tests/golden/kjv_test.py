"""The shipped model writes the same text under every cache, and goes on from long prompts.

    kjv_test.py PROGRAM FOLDER

FOLDER holds model.bin and tokenizer.bin; without them this is skipped (exit status 77). With
KVC_TEST_QUICK in the environment, all texts but two are: other tests run the same code on less."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FOLDER = Path(sys.argv.pop(2) if len(sys.argv) > 2 else "models/kjv")
PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "build/kvcache"
CONTEXT = 1024
whole_texts = unittest.skipIf(os.environ.get("KVC_TEST_QUICK"), "KVC_TEST_QUICK: no long texts")


def generate(*options):
    command = [PROGRAM, "generate", FOLDER / "model.bin", "--tokenizer", FOLDER / "tokenizer.bin",
               "--quiet", *options]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout.decode()


class ShippedModel(unittest.TestCase):
    def test_the_text_is_the_same_under_every_cache(self):
        for options in ["--temperature", "0"], ["--seed", "3"]:
            options += ["--prompt", "In the beginning", "--steps", "300"]
            wanted = generate(*options)
            self.assertTrue(wanted.startswith("In the beginning"))
            for cache in "concat", "chunk", "reserve":
                self.assertEqual(generate(*options, "--cache", cache), wanted)

    @whole_texts
    def test_the_context_is_that_of_the_recipe(self):
        self.assertGreater(len(generate("--steps", str(CONTEXT))), CONTEXT)

    @whole_texts
    def test_a_long_prompt_of_its_own_words_is_continued(self):
        prompt = generate("--seed", "5", "--steps", "300").rstrip("\n")
        wanted = generate("--seed", "5", "--prompt", prompt)
        self.assertTrue(wanted.startswith(prompt) and len(wanted) > len(prompt) + 200)
        for cache in "concat", "chunk":
            self.assertEqual(generate("--seed", "5", "--prompt", prompt, "--cache", cache), wanted)

    @whole_texts
    def test_guesses_change_nothing(self):
        for options in ["--temperature", "0"], ["--seed", "3"]:
            options += ["--prompt", "And God said", "--steps", "600"]
            wanted = generate(*options)
            for count in "1", "5", "20":
                self.assertEqual(generate(*options, "--speculate", count), wanted)

    @whole_texts
    def test_the_perplexity_is_that_of_the_recipe(self):
        """README.md has what PyTorch says: 2.5093 nats over 19,941 tokens, 1,023 at a time."""
        line = generate("--perplexity", str(FOLDER / "heldout.txt"))
        found = re.match(r"perplexity \S+ \((\S+) nats a token\) over 19941 tokens", line)
        self.assertIsNotNone(found, line)
        self.assertAlmostEqual(float(found[1]), 2.5093, delta=1e-4)

    @whole_texts
    def test_half_floats_predict_as_well(self):
        """The first 8 KB of the text: two windows and a half."""
        with tempfile.NamedTemporaryFile() as text:
            text.write((FOLDER / "heldout.txt").read_bytes()[:8192])
            text.flush()
            told = [generate("--perplexity", text.name, "--kv-dtype", dtype)
                    for dtype in ("f32", "f16", "bf16")]
        values = [float(line.split()[1]) for line in told]
        for value in values[1:]:
            self.assertLess(abs(value / values[0] - 1), 1e-4, told)

    @whole_texts
    def test_packed_caches_predict_nearly_as_well(self):
        """The bars: eight bits within 0.1 % of f32, four within 2 %, over more than 10,000 tokens.
        Each window of 64 forwards packs and reads what it has just appended."""
        with tempfile.NamedTemporaryFile() as text:
            text.write((FOLDER / "heldout.txt").read_bytes()[:32768])
            text.flush()
            told = {cache: generate("--perplexity", text.name, "--cache", cache)
                    for cache in ("reserve", "q8:32", "q4:32", "q8:32+paged")}
        values = {cache: float(line.split()[1]) for cache, line in told.items()}
        self.assertGreater(int(re.search(r"over (\d+) tokens", told["q8:32"])[1]), 10000)
        self.assertLess(abs(values["q8:32"] / values["reserve"] - 1), 0.001, told)
        self.assertLess(abs(values["q4:32"] / values["reserve"] - 1), 0.02, told)
        self.assertEqual(values["q8:32+paged"], values["q8:32"])

    def test_half_floats_write_words_too(self):
        for dtype in "f16", "bf16":
            text = generate("--temperature", "0", "--prompt", "And God said", "--kv-dtype", dtype)
            self.assertTrue(text.startswith("And God said"))
            self.assertGreater(len(text.split()), 50)


if __name__ == "__main__":
    if not (FOLDER / "model.bin").is_file():
        print(f"skipped: no {FOLDER}/model.bin")
        sys.exit(77)
    unittest.main()
