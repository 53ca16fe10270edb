"""The frame of the program: finding commands, help, version, a stdout that takes nothing.

    program_test.py PROGRAM
"""

import os
import re
import subprocess
import unittest

from program import PROGRAM, ProgramTest

COMMANDS = ["bench append", "bench attend", "bench fork", "bench pool", "bench prefix", "explain",
            "generate", "inspect", "convert"]


class Program(ProgramTest):
    def test_help_lists_the_commands(self):
        text = self.printed("--help")
        for command in "bench", "convert", "explain", "generate", "inspect":
            self.assertRegex(text, rf"(?m)^  {command} +\w")
        self.assertEqual(self.printed("-h"), text)
        self.assertEqual(self.printed("help"), text)

    def test_every_command_helps_in_both_ways(self):
        for command in COMMANDS:
            text = self.printed(*command.split(), "--help")
            self.assertIn(f"Usage: kvcache {command}", text)
            self.assertEqual(self.printed("help", *command.split()), text)
        self.assertIn("append", self.printed("help", "bench"))

    def test_help_fits_a_terminal(self):
        for command in ["", "bench", *COMMANDS]:
            for line in self.printed(*command.split(), "--help").splitlines():
                self.assertLessEqual(len(line), 100, line)

    def test_every_option_in_the_help_is_known(self):
        for command in COMMANDS:
            text = self.printed(*command.split(), "--help")
            for option in re.findall(r"(?m)^  (--[a-z-]+)", text):
                done = self.run_program(*command.split(), f"{option}=?", "stray", "stray")
                self.assertEqual(done.returncode, 2)
                self.assertNotIn("unknown option", done.stderr)

    def test_version(self):
        self.assertRegex(self.printed("--version"), r"^kvcache \d+\.\d+\.\d+\n$")

    def test_what_is_unknown_is_refused(self):
        self.assert_refused(2, "", [], "no command given", "bench, convert, explain, generate or inspect")
        self.assert_refused(2, "", ["train"], "'train'", "bench, convert, explain, generate or inspect")
        self.assert_refused(2, "", ["--verbose"], "unknown option '--verbose'")
        self.assert_refused(2, "", ["help", "train"], "'train'")
        self.assert_refused(2, "bench", [], "no command given", "append, attend, fork, pool, prefix or tier")
        self.assert_refused(2, "bench", ["knife"], "'knife'", "append, attend, fork, pool, prefix or tier")
        for command in COMMANDS:
            self.assert_refused(2, command, ["--bogus"], "unknown option '--bogus'")
            self.assert_refused(2, command, ["-x"], "unknown option '-x'")
            self.assert_refused(2, command, ["--help=3"], "--help: takes no value")
        for command in COMMANDS[:-3]:
            self.assert_refused(2, command, ["stray"], "unexpected argument 'stray'")
            self.assert_refused(2, command, ["--json=1"], "--json: takes no value")

    def test_a_missing_value_is_named(self):
        self.assert_refused(2, "bench append", ["--steps"], "--steps: a value is wanted")
        self.assert_refused(2, "bench append", ["--c", "3"], "'--c' could be several")

    def test_an_error_is_one_line_whatever_was_given(self):
        self.assert_refused(2, "explain", ["--dtype", "a\nb\x1b[1m"], "'a?b?[1m' given")
        self.assert_refused(2, "bench append", ["--contexts", "1" * 5000], "--contexts")

    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = self.run_program("explain", capture_output=False, stdout=full,
                                    stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "kvcache explain: stdout: No space left on device\n")

    def test_a_closed_pipe_is_an_error(self):
        reader, writer = os.pipe()
        os.close(reader)  # before the program starts: it must not win a race against us
        done = self.run_program("explain", capture_output=False, stdout=writer,
                                stderr=subprocess.PIPE)
        os.close(writer)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "kvcache explain: stdout: Broken pipe\n")


if __name__ == "__main__":
    unittest.main()
