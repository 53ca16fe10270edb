"""`kvcache generate` with good input and bad.

    generate_test.py PROGRAM

Bad input: exactly one line on stderr, nothing on stdout, 2 for what was asked for wrongly and 1 for
the rest."""

import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import tiny_model  # noqa: E402

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "build/kvcache"
CONTEXT = tiny_model.SHAPE[6]


def patched(data, offset, value):
    return data[:offset] + struct.pack("<i", value) + data[offset + 4:]


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.model = cls.write("model.bin", tiny_model.checkpoint())
        cls.tokenizer = cls.write("tokenizer.bin", tiny_model.tokenizer())

    @classmethod
    def write(cls, name, data):
        path = cls.folder / name
        path.write_bytes(data)
        return path

    def run_program(self, *words, **more):
        return subprocess.run([PROGRAM, "generate", *map(str, words)], capture_output=True,
                              check=False, timeout=60, **more)

    def generate(self, *options, model=None, tokenizer=None, **more):
        return self.run_program(model or self.model, "--tokenizer", tokenizer or self.tokenizer,
                                *options, **more)

    def text(self, *options, **more):
        done = self.generate("--quiet", *options, **more)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return done.stdout

    def assert_refused(self, done, status, *words):
        """One line that has all the words, on stderr alone."""
        line = done.stderr.decode(errors="replace")
        self.assertEqual((done.returncode, done.stdout), (status, b""), line)
        self.assertEqual(line.count("\n"), 1, line)
        self.assertTrue(line.startswith("kvcache generate: ") and line.endswith("\n"), line)
        for word in words:
            self.assertIn(str(word), line)

    # The text.

    def test_the_text_is_the_same_under_every_cache(self):
        for draw in (["--temperature", "0"], ["--seed", "7"], ["--seed", "7", "--top-p", "1"]):
            wanted = self.text("--prompt", "the hat", "--steps", "90", *draw)
            self.assertTrue(wanted.startswith(b"the hat"))
            self.assertTrue(wanted.endswith(b"\n"))
            for cache in "concat", "chunk", "reserve":
                for chunk in "1", "7", "256":
                    text = self.text("--prompt", "the hat", "--steps", "90", *draw, "--cache",
                                     cache, "--chunk", chunk)
                    self.assertEqual(text, wanted, (cache, chunk))

    def test_blocks_and_wide_windows_change_nothing(self):
        for draw in (["--temperature", "0"], ["--seed", "7"]):
            wanted = self.text("--prompt", "the hat", "--steps", "90", *draw)
            for cache in "paged", "paged:16", f"window:{CONTEXT}", f"window:{CONTEXT}:9":
                text = self.text("--prompt", "the hat", "--steps", "90", *draw, "--cache", cache)
                self.assertEqual(text, wanted, cache)

    def test_a_narrow_window_is_another_text_and_the_same_with_guesses(self):
        full = self.text("--prompt", "the hat", "--steps", "90", "--seed", "7")
        for cache in "window:8", "window:8:3":
            options = ["--prompt", "the hat", "--steps", "90", "--seed", "7", "--cache", cache]
            text = self.text(*options)
            self.assertNotEqual(text, full)
            self.assertEqual(self.text(*options, "--speculate", "5"), text)

    def test_continuations_are_those_of_their_seeds(self):
        for prompt in "the hat", "":
            options = ["--prompt", prompt, "--steps", "70"]
            alone = [b"--- continuation %d, seed %d\n" % (i + 1, 7 + i) +
                     self.text(*options, "--seed", 7 + i) for i in range(4)]
            together = self.text(*options, "--seed", "7", "--parallel", "4", "--cache", "paged:16")
            self.assertEqual(together, b"\n".join(alone))
        done = self.generate(*options, "--parallel", "4", "--cache", "paged:16")
        self.assertIn("blocks hold all", done.stderr.decode())

    def test_what_continuations_want(self):
        self.assert_refused(self.generate("--parallel", "2"), 2, "--cache", "paged")
        done = self.generate("--parallel", "2", "--cache", "paged", "--speculate", "2")
        self.assert_refused(done, 2, "--speculate", "--parallel")

    def test_groups_that_do_not_divide_a_head(self):
        self.assert_refused(self.generate("--cache", "q8"), 2, "--cache", "q8", "heads of 4")

    def test_every_dtype_of_the_cache_runs(self):
        for dtype in "f32", "f16", "bf16":
            for cache in "concat", "chunk", "reserve":
                text = self.text("--prompt", "a", "--kv-dtype", dtype, "--cache", cache)
                self.assertTrue(text.startswith(b"a"))

    def test_equal_seeds_give_equal_texts_and_others_do_not(self):
        self.assertEqual(self.text("--seed", "3"), self.text("--seed", "3"))
        self.assertEqual(self.text(), self.text("--seed", "1"))
        self.assertNotEqual(self.text("--seed", "3"), self.text("--seed", "4"))
        self.assertNotEqual(self.text("--seed", "0"), self.text("--seed", "4"))

    def test_an_empty_prompt_is_no_prompt(self):
        self.assertEqual(self.text("--prompt", ""), self.text())

    def test_a_prompt_comes_back_as_it_is(self):
        for prompt in "the then", " two  spaces", "z", "H\u00e9l\u00e8ne \u2014 \u6f22 \U0001f600", \
                "line\nand\ttab":
            text = self.text("--prompt", prompt, "--temperature", "0")
            self.assertTrue(text.startswith(prompt.encode()), (prompt, text))

    def test_control_bytes_of_a_prompt_do_not_reach_the_terminal(self):
        text = self.text("--prompt", "a\x1b[31mz", "--steps", "7")
        self.assertEqual(text, b"a[31mz\n")

    def test_the_text_is_utf8_whatever_the_prompt(self):
        text = self.text("--prompt", os.fsdecode(b"a\xff\xc3z"), "--temperature", "0")
        self.assertTrue(text.startswith(b"az"), text)
        for seed in range(20):
            self.text("--seed", seed, "--temperature", "2", "--top-p", "1").decode()
        self.assertEqual(self.text("--prompt", "a\u00e9", "--steps", "2"), b"a\n")
        self.assertEqual(self.text("--prompt", "a\u00e9", "--steps", "3"), "a\u00e9\n".encode())

    def test_steps_count_the_positions_computed(self):
        self.assertEqual(self.text("--prompt", "the", "--steps", "1"), b"the\n")
        # Six tokens: " the", then five bytes; fewer steps show fewer of them.
        self.assertEqual(self.text("--prompt", "the12345", "--steps", "3"), b"the12\n")
        self.assertEqual(self.text("--prompt", "the12345", "--steps", "6"), b"the12345\n")
        done = self.generate("--prompt", "the12345", "--steps", "3")
        self.assertIn(b"--steps ended within its 7 tokens", done.stderr)

    def test_one_step_is_a_text(self):
        for steps in 1, CONTEXT:
            self.assertTrue(self.text("--steps", steps).endswith(b"\n"))

    def test_a_prompt_may_fill_the_context(self):
        prompt = "1" * (CONTEXT - 2) # BOS and a space before it
        self.assertTrue(self.text("--prompt", prompt).startswith(prompt.encode()))

    def test_a_classifier_of_its_own_is_used(self):
        shape = tiny_model.SHAPE[:5] + (-tiny_model.SHAPE[5], CONTEXT)
        model = self.write("own.bin", tiny_model.checkpoint(shape))
        self.assertTrue(self.text("--prompt", "the", model=model).startswith(b"the"))

    # Guessing ahead.

    def guesses(self, *options):
        """(text, drafted, accepted, forwards, positions)"""
        done = self.generate(*options)
        self.assertEqual(done.returncode, 0, done.stderr)
        line = re.search(rb"speculation +(\d+) of (\d+) drafted tokens accepted; (\d+) forwards for "
                         rb"(\d+) positions\n", done.stderr)
        accepted, drafted, forwards, positions = map(int, line.groups())
        return done.stdout, drafted, accepted, forwards, positions

    def test_the_text_is_the_same_with_guesses(self):
        for draw in (["--temperature", "0"], ["--seed", "7"], ["--seed", "2", "--top-p", "1"],
                     ["--temperature", "0.3", "--seed", "5"]):
            for prompt in "the hat", "", "the hat an the hat an the", "1" * (CONTEXT - 4):
                wanted = self.text("--prompt", prompt, *draw)
                for count in "0", "1", "2", "7", "63":
                    with self.subTest(draw=draw, prompt=prompt, count=count):
                        self.assertEqual(wanted, self.text("--prompt", prompt, *draw,
                                                           "--speculate", count))

    def test_the_text_ends_in_the_same_place_with_guesses(self):
        """After any number of steps, and where the model gives BOS."""
        prompt = ["--prompt", "the hat an the hat", "--temperature", "0"]
        for steps in range(1, 40):
            self.assertEqual(self.text(*prompt, "--steps", steps),
                             self.text(*prompt, "--steps", steps, "--speculate", "5"), steps)
        draw = ["--prompt", "the the the the", "--temperature", "1", "--top-p", "1", "--seed"]
        texts = [self.text(*draw, seed) for seed in range(12)]
        for seed, text in enumerate(texts):
            self.assertEqual(self.text(*draw, seed, "--speculate", "4"), text)

    def test_guesses_are_counted(self):
        told = []
        for cache in "reserve", "chunk", "concat":
            options = ["--temperature", "0", "--speculate", "4", "--chunk", "5", "--cache", cache]
            told.append(self.guesses(*options))
            text, drafted, accepted, forwards, positions = told[-1]
            self.assertEqual(text, self.text("--temperature", "0"))
            self.assertEqual(positions, CONTEXT - 1) # all but the prompt's, which is BOS
            self.assertEqual(forwards + accepted, positions)
            self.assertTrue(0 < accepted < drafted, told)
            self.assertLessEqual(drafted, 4 * forwards)
        self.assertEqual(told, told[:1] * 3)
        self.assertEqual(self.guesses("--steps", "1", "--speculate", "4")[1:], (0, 0, 0, 0))
        self.assertNotIn(b"speculation", self.generate("--speculate", "0").stderr)

    # Perplexity.

    def perplexity(self, text, *options, **more):
        """(perplexity, nats a token, tokens, windows)"""
        path = self.write("text.txt", text.encode())
        line = self.text("--perplexity", path, *options, **more).decode()
        numbers = re.fullmatch(r"perplexity ([\d.]+) \(([\d.]+) nats a token\) over (\d+) tokens in "
                               r"(\d+) windows of \d+\n", line)
        self.assertIsNotNone(numbers, line)
        return *map(float, numbers.groups()[:2]), *map(int, numbers.groups()[2:])

    def test_a_model_that_knows_nothing_is_as_perplexed_as_it_has_tokens(self):
        header = struct.pack("<7i", *tiny_model.SHAPE)
        nothing = self.write("nothing.bin", header + bytes(4 * tiny_model.weights()))
        for window in 2, 3, 64, 65, 66, CONTEXT - 1, CONTEXT:
            for count in 2, 64, 65, 128, 129, 3 * CONTEXT: # the text's tokens: a space comes first
                told = self.perplexity("1" * (count - 1), "--steps", window, model=nothing)
                wanted = tiny_model.SHAPE[5]
                self.assertEqual(told[2:], (count, -(-count // (window - 1))), (window, count))
                self.assertAlmostEqual(told[0], wanted, delta=1e-4)
                self.assertAlmostEqual(told[1], math.log(wanted), delta=1e-6)
        self.assertEqual(self.perplexity("1" * 99, model=nothing)[3], 2)

    def test_windows_know_nothing_of_each_other(self):
        """In windows of two tokens each is predicted from BOS alone: nats add up."""
        def nats(text, window=2):
            told = self.perplexity(text, "--steps", window)
            return told[1] * told[2]
        space_and_one, and_two = nats("1"), nats("11")
        self.assertAlmostEqual(nats("1" * 50) - space_and_one, 49 * (and_two - space_and_one),
                               delta=1e-3)
        # And with more before it, a token is predicted differently.
        self.assertNotAlmostEqual(nats("11", 3), and_two, delta=1e-3)

    def test_the_perplexity_is_the_same_under_every_cache(self):
        text = "the hat and then an ant " * 20
        wanted = self.perplexity(text)
        for cache in "concat", "chunk", "reserve":
            for chunk in "1", "7", "256":
                self.assertEqual(self.perplexity(text, "--cache", cache, "--chunk", chunk), wanted)
        for dtype, bound in ("f16", 1e-3), ("bf16", 1e-2):
            told = self.perplexity(text, "--kv-dtype", dtype)
            self.assertNotEqual(told[1], wanted[1])
            self.assertAlmostEqual(told[1], wanted[1], delta=bound)

    def test_what_perplexity_tells_beside(self):
        text = self.write("text.txt", b"the hat " * 100)
        trace = self.folder / "perplexity.json"
        done = self.generate("--perplexity", text, "--trace", trace)
        self.assertEqual((done.returncode, done.stdout.count(b"\n")), (0, 1))
        for word in b"predicted", b"positions/s", b"attention", b"reserve, f32", b"used":
            self.assertIn(word, done.stderr)
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
        self.assertTrue([e for e in events if e.get("name") == "step" and e.get("ph") == "X"])

    # The figures.

    def test_figures_go_to_stderr(self):
        done = self.generate("--prompt", "the hat", "--cache", "chunk", "--kv-dtype", "bf16")
        self.assertEqual(done.returncode, 0)
        self.assertTrue(done.stdout.startswith(b"the hat"))
        for word in (b"prompt", b"continued", b"positions/s", b"p50", b"p99", b"attention",
                     b"append", b"chunk, bf16", b"used", b"resident"):
            self.assertIn(word, done.stderr)

    def test_a_trace_is_json_with_every_step(self):
        trace = self.folder / "trace.json"
        done = self.generate("--prompt", "the hat", "--steps", "50", "--trace", trace, "--quiet")
        self.assertEqual(done.returncode, 0)
        self.assertIn(str(trace).encode(), done.stderr)
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
        steps = [e for e in events if e.get("name") == "step" and e.get("ph") == "X"]
        kernels = [e for e in events if e.get("cat") == "kernel"]
        self.assertGreater(len(steps), 30)
        self.assertEqual(len(kernels), tiny_model.SHAPE[2] * len(steps))

    def test_help_names_every_option(self):
        done = self.run_program("--help")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        for option in ("--tokenizer", "--prompt", "--steps", "--temperature", "--top-p", "--seed",
                       "--speculate", "--perplexity", "--cache", "--kv-dtype", "--chunk", "--trace",
                       "--strict", "--quiet"):
            self.assertIn(option.encode(), done.stdout)

    # What is asked for wrongly.

    def test_words_that_are_missing_or_unknown(self):
        self.assert_refused(self.run_program(), 2, "MODEL")
        self.assert_refused(self.run_program(self.model), 2, "--tokenizer")
        self.assert_refused(self.run_program("--tokenizer", self.tokenizer), 2, "MODEL")
        self.assert_refused(self.generate("more"), 2, "more")
        self.assert_refused(self.generate("--frobnicate"), 2, "--frobnicate")
        self.assert_refused(self.generate("--steps"), 2, "--steps")
        self.assert_refused(self.generate("--quiet=yes"), 2, "--quiet")

    def test_values_that_cannot_be(self):
        for option, values in {
                "--steps": ["0", "-1", "abc", "", "1.5", "3x", "99999999999999999999", CONTEXT + 1],
                "--temperature": ["-1", "nan", "inf", "abc", ""],
                "--top-p": ["-0.1", "1.1", "nan", "abc"],
                "--seed": ["-1", "abc", "99999999999999999999"],
                "--speculate": ["-1", "64", "abc", "", "1.5"],
                "--parallel": ["0", "-1", "65", "abc", ""],
                "--cache": ["exact", "", "RESERVE", "reserve:", "reserve:5", "window", "window:0",
                            "window:4:4", "paged:15", "q7", "q8:16", "q8+q4", "window:8+paged"],
                "--kv-dtype": ["f64", "i8", ""],
                "--chunk": ["0", "-1", "abc"]}.items():
            for value in values:
                with self.subTest(option=option, value=value):
                    self.assert_refused(self.generate(option, value), 2, option, value)

    def test_more_steps_than_the_context_name_the_limit(self):
        self.assert_refused(self.generate("--steps", CONTEXT + 1), 2, CONTEXT)

    def test_perplexity_and_what_is_about_a_text_to_write(self):
        text = self.write("text.txt", b"the hat")
        for option, value in (("--prompt", "a"), ("--temperature", "0"), ("--top-p", "1"),
                              ("--seed", "1"), ("--speculate", "1"), ("--parallel", "1")):
            done = self.generate("--perplexity", text, option, value)
            self.assert_refused(done, 2, option, "--perplexity")
        for steps in "1", CONTEXT + 1:
            done = self.generate("--perplexity", text, "--steps", steps)
            self.assert_refused(done, 2, "--steps", steps)
        self.assert_refused(self.generate("--perplexity"), 2, "--perplexity")

    # What does not work.

    def test_a_text_that_is_none(self):
        missing = self.folder / "missing.txt"
        empty = self.write("empty.txt", b"")
        for name, words in ((missing, "No such file"), (self.folder, "directory"),
                            (empty, "empty"), ("/dev/null", "device")):
            self.assert_refused(self.generate("--perplexity", name), 1, name, words)

    def test_files_that_are_none(self):
        missing = self.folder / "missing.bin"
        empty = self.write("empty.bin", b"")
        for name, words in ((missing, "No such file"), (self.folder, "directory"),
                            (empty, "empty"), ("/dev/null", "device")):
            with self.subTest(name=name):
                self.assert_refused(self.generate(model=name), 1, name, words)
                self.assert_refused(self.generate(tokenizer=name), 1, name, words)

    def test_a_pipe_is_refused_and_not_waited_for(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        self.assert_refused(self.generate(model=pipe), 1, pipe)

    def test_truncated_checkpoints(self):
        data = tiny_model.checkpoint()
        for count in 1, 27, 28, 29, 1000, len(data) - 4, len(data) - 1:
            with self.subTest(bytes=count):
                model = self.write("short.bin", data[:count])
                self.assert_refused(self.generate(model=model), 1, model, count)

    def test_checkpoints_that_are_too_long_or_something_else(self):
        longer = self.write("longer.bin", tiny_model.checkpoint() + b"\0\0\0\0")
        self.assert_refused(self.generate(model=longer), 1, longer, "damaged")
        later = self.write("later.bin", struct.pack("<7i", 0x616b3432, 1, 2, 3, 4, 5, 6))
        self.assert_refused(self.generate(model=later), 1, "version 1", "--version 0")
        text = self.write("text.bin", b"This is no model at all. " * 100)
        self.assert_refused(self.generate(model=text), 1, text)

    def test_absurd_headers(self):
        data = tiny_model.checkpoint()
        for field in range(7):
            for value in 0, -1, -2**31, 2**31 - 1, 2**30, 5:
                with self.subTest(field=field, value=value):
                    model = self.write("absurd.bin", patched(data, 4 * field, value))
                    self.assert_refused(self.generate(model=model), 1, model)
        largest = self.write("largest.bin", struct.pack("<7i", *[2**30] * 3, 2**29, 1, 2**30, 2**30))
        self.assert_refused(self.generate(model=largest), 1, largest)

    # The cache in a file.

    def saved(self, *options):
        """A file of the cache after a text, or the test is skipped."""
        path = self.folder / "saved.safetensors"
        done = self.generate("--quiet", "--save-cache", path, *options)
        if b"without libkvcache-store" in done.stderr:
            self.skipTest("the program was built without libkvcache-store")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return path

    def test_a_cache_from_a_file_continues_the_text(self):
        draw = ["--prompt", "the hat and the ant", "--temperature", "0"]
        for cache in [], ["--cache", "paged:16"], ["--cache", "chunk", "--kv-dtype", "bf16"]:
            path = self.saved(*draw, *cache, "--steps", "40")
            wanted = self.text(*draw, *cache, "--steps", "80")
            for how in [[]] + [["--map"]] * (not cache):
                done = self.generate(*draw, *cache, "--steps", "80", "--load-cache", path, *how)
                self.assertEqual((done.returncode, done.stdout), (0, wanted))
                self.assertRegex(done.stderr, rb"prompt +1 positions.*; \d+ from a file")
            other = ["--prompt", "the hat on", "--temperature", "0", *cache, "--steps", "50"]
            self.assertEqual(self.text(*other, "--load-cache", path), self.text(*other))

    def test_caches_of_others_are_refused(self):
        path = self.saved("--prompt", "the", "--steps", "20")
        model = self.write("other.bin", tiny_model.checkpoint(seed=2))
        self.assert_refused(self.generate("--load-cache", path, model=model), 1, "--load-cache",
                            "model", "expected", "found")
        self.assert_refused(self.generate("--load-cache", path, "--kv-dtype", "bf16"), 1,
                            "--load-cache", "another kind")
        self.assert_refused(self.generate("--load-cache", self.model), 1, "--load-cache", "header")
        self.assert_refused(self.generate("--load-cache", self.folder / "none"), 1, "No such file")
        self.assert_refused(self.generate("--map"), 2, "--map", "--load-cache")
        self.assert_refused(self.generate("--map", "--load-cache", path, "--cache", "chunk"), 2,
                            "--map", "reserve")
        self.assert_refused(self.generate("--load-cache", path, "--perplexity", self.model), 2,
                            "--load-cache", "--perplexity")
        self.assert_refused(self.generate("--save-cache", path, "--parallel", "2", "--cache",
                                          "paged"), 2, "--save-cache", "--parallel")

    def test_a_cache_that_cannot_be_written(self):
        self.saved("--steps", "4")
        done = self.generate("--quiet", "--steps", "4", "--save-cache", self.folder / "no" / "file")
        self.assertEqual((done.returncode, done.stderr.count(b"\n")), (1, 1), done.stderr)
        self.assertIn(b"--save-cache", done.stderr)

    def test_tokenizers_of_other_models(self):
        data = tiny_model.tokenizer()
        for name, other in (("fewer", tiny_model.tokenizer(280)),
                            ("more", tiny_model.tokenizer(300)), ("longer", data + b"\0"),
                            ("short", data[:-1]), ("header", data[:4]), ("bytes", data[:2]),
                            ("length", patched(data, 8, 1 << 30)), ("negative", patched(data, 8, -1)),
                            ("zero", patched(data, 0, 0)), ("model", tiny_model.checkpoint())):
            with self.subTest(name=name):
                path = self.write("other.bin", other)
                self.assert_refused(self.generate(tokenizer=path), 1, path)

    def test_weights_that_are_no_numbers(self):
        data = tiny_model.checkpoint()
        model = self.write("nan.bin", data[:28] + b"\xff" * (len(data) - 28))
        self.assert_refused(self.generate("--prompt", "", model=model), 1, "damaged")
        text = self.write("text.txt", b"the hat")
        self.assert_refused(self.generate("--perplexity", text, model=model), 1, "damaged")

    def test_a_prompt_longer_than_the_context(self):
        self.assert_refused(self.generate("--prompt", "1" * (CONTEXT - 1)), 1, CONTEXT, CONTEXT + 1)
        self.assert_refused(self.generate("--prompt", "1" * 100000, "--steps", "5"), 1, CONTEXT)

    def test_a_trace_that_cannot_be_written(self):
        trace = self.folder / "missing" / "trace.json"
        self.assert_refused(self.generate("--trace", trace), 1, trace)

    def test_a_full_disk_and_a_closed_stdout(self):
        command = [PROGRAM, "generate", self.model, "--tokenizer", self.tokenizer, "--quiet"]
        with open("/dev/full", "wb") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
        self.assertEqual((done.returncode, done.stderr),
                         (1, b"kvcache generate: stdout: No space left on device\n"))
        done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command],
                              stderr=subprocess.PIPE, check=False)
        self.assertEqual((done.returncode, done.stderr.count(b"\n")), (1, 1), done.stderr)
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
        os.close(writer)
        self.assertEqual((done.returncode, done.stderr.count(b"\n")), (1, 1), done.stderr)


if __name__ == "__main__":
    unittest.main()
