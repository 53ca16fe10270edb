"""`kvcache generate --tier`: the text is the same with and without, whatever happens to the tier.

    generate_tier_test.py PROGRAM

Of Redis only where a server is installed."""

import contextlib
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import tiny_model  # noqa: E402

PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "build/kvcache"
SERVER = shutil.which("valkey-server") or shutil.which("redis-server")
# 52 tokens: BOS, a space, and one a digit. Three full blocks of 16 before the last token.
PROMPT = "12345678901234567890123456789012345678901234567890"
BLOCKS = "paged:16"


class TierTest(unittest.TestCase):
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

    def generate(self, *options, prompt=PROMPT, cache=BLOCKS, model=None, limit=None):
        """limit: bytes that no file of the run may have more of; the signal for it is ignored, as
        Python has it, and the write fails."""
        words = [PROGRAM, "generate", model or self.model, "--tokenizer", self.tokenizer,
                 "--prompt", prompt, "--cache", cache, *options]
        limits = None if limit is None else lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (limit, limit))
        return subprocess.run([str(word) for word in words], capture_output=True, check=False,
                              timeout=100, preexec_fn=limits, restore_signals=limit is None)

    def text(self, *options, **more):
        done = self.generate(*options, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def found(self, *options, **more):
        """The text; positions of the prompt that were found, in all and by each tier; blocks kept
        by each."""
        done = self.generate(*options, **more)
        figures = done.stderr.decode()
        self.assertEqual(done.returncode, 0, figures)
        ready = int(re.search(r"^tiers +(\d+) of the prompt's", figures, re.M)[1])
        tiers = re.findall(r"^(?:disk|redis) +(\d+) positions found; (\d+) blocks kept", figures,
                           re.M)
        return done.stdout, ready, [int(n) for n, _ in tiers], [int(n) for _, n in tiers]

    def new_tier(self):
        return f"disk:{tempfile.mkdtemp(dir=self.folder)}/tier"


class Disk(TierTest):
    def test_a_second_run_finds_the_prompt_and_gives_the_same_text(self):
        for draw in (["--temperature", "0"], ["--seed", "7"], ["--speculate", "4"],
                     ["--kv-dtype", "bf16"], ["--steps", "40"], ["--steps", "3"]):
            tier = self.new_tier()
            wanted = self.text(*draw)
            text, ready, found, kept = self.found(*draw, "--tier", tier)
            self.assertEqual((text, ready, found), (wanted, 0, [0]))
            text, ready, found, _ = self.found(*draw, "--tier", tier)
            right = 48 if "--steps" not in draw else 32 if "40" in draw else 0
            self.assertEqual((text, ready, found), (wanted, right, [right]))

    def test_the_whole_text_is_kept(self):
        tier = self.new_tier()
        draw = ["--temperature", "0"]
        text, _, _, kept = self.found(*draw, "--steps", "90", "--tier", tier)
        self.assertEqual(kept, [5])
        # What was generated, as a prompt: found as far as its tokens are the same.
        _, ready, _, _ = self.found(*draw, "--tier", tier, prompt=PROMPT + "1")
        self.assertEqual(ready, 48)

    def test_only_what_prompts_have_in_common_is_found(self):
        tier = self.new_tier()
        self.found("--tier", tier)
        other = PROMPT[:29] + "x" + PROMPT[30:]  # the last of the second block
        wanted = self.text(prompt=other)
        text, ready, _, _ = self.found("--tier", tier, prompt=other)
        self.assertEqual((text, ready), (wanted, 16))
        self.assertEqual(self.found("--tier", tier, prompt="")[1], 0)

    def test_the_last_token_is_always_computed(self):
        tier = self.new_tier()
        for length in 45, 46, 47:  # and two tokens
            self.found("--tier", tier, prompt=PROMPT[:length])
            wanted = self.text(prompt=PROMPT[:length])
            text, ready, _, _ = self.found("--tier", tier, prompt=PROMPT[:length])
            self.assertEqual((text, ready), (wanted, 48 if length == 47 else 32))

    def test_another_model_dtype_or_block_finds_nothing(self):
        tier = self.new_tier()
        self.found("--tier", tier)
        other = self.write("other.bin", tiny_model.checkpoint(seed=2))
        self.assertEqual(self.found("--tier", tier, model=other)[1], 0)
        self.assertEqual(self.found("--tier", tier, "--kv-dtype", "f16")[1], 0)
        self.assertEqual(self.found("--tier", tier, cache="paged:17")[1], 0)
        self.assertEqual(self.found("--tier", tier)[1], 48)

    def test_continuations_share_what_is_found(self):
        tier = self.new_tier()
        several = ["--parallel", "3", "--seed", "5"]
        wanted = self.text(*several)
        for ready in 0, 48:
            self.assertEqual(self.found(*several, "--tier", tier)[:2], (wanted, ready))

    def test_tiers_are_asked_in_their_order_and_fill_each_other(self):
        near, far = self.new_tier(), self.new_tier()
        self.found("--steps", "52", "--tier", far)
        both = ["--steps", "52", "--tier", near, "--tier", far]
        self.assertEqual(self.found(*both)[1:], (48, [0, 48], [3, 0]))
        self.assertEqual(self.found(*both)[1:], (48, [48, 0], [0, 0]))

    def test_damaged_values_change_nothing(self):
        tier = self.new_tier()
        wanted = self.text()
        self.found("--tier", tier)
        draw = random.Random(4)
        for _ in range(20):
            for path in Path(tier[5:]).rglob("*.kvb"):
                data = bytearray(path.read_bytes())
                harm = draw.randrange(4)
                if harm == 0:
                    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
                elif harm == 1:
                    data = data[:draw.randrange(len(data))]
                elif harm == 2:
                    path.unlink()
                    continue
                path.write_bytes(data)
            self.assertEqual(self.text("--tier", tier), wanted)
        # One behind a block that is gone is found to be damaged when that is there again.
        self.assertEqual(self.text("--tier", tier), wanted)
        self.assertEqual(self.found("--tier", tier)[:2], (wanted, 48))

    def test_a_run_that_is_killed_leaves_nothing_wrong(self):
        tier = self.new_tier()
        wanted = self.text()
        words = [PROGRAM, "generate", self.model, "--tokenizer", self.tokenizer, "--prompt",
                 PROMPT, "--cache", BLOCKS, "--tier", tier]
        for i in range(10):
            run = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
            time.sleep(0.002 * i)
            run.kill()
            run.wait()
        self.assertEqual(self.text("--tier", tier), wanted)
        self.assertEqual(self.found("--tier", tier)[:2], (wanted, 48))

    def test_a_full_disk_is_told_once_and_changes_nothing(self):
        """As on a disk without room, no file of the run grows past so many bytes."""
        wanted = self.text()
        for most in 0, 100, 1000:
            tier = self.new_tier()
            done = self.generate("--tier", tier, limit=most)
            self.assertEqual((done.returncode, done.stdout), (0, wanted), done.stderr)
            self.assertEqual(done.stderr.decode().count("no room"), 1, done.stderr)
            self.assertEqual(self.found("--tier", tier)[:2], (wanted, 0))
            self.assertEqual(self.found("--tier", tier)[:2], (wanted, 48))

    def test_what_the_option_wants(self):
        many = ["--tier", "disk:x"] * 9
        for words, cache, expected in (
                (["--tier", "tape:x"], BLOCKS, "disk:FOLDER"),
                (["--tier", "disk:"], BLOCKS, "disk:FOLDER"),
                (many, BLOCKS, "more than 8"),
                (["--tier", "disk:x"], "reserve", "paged"),
                (["--tier", "disk:x", "--perplexity", "f"], BLOCKS, "--perplexity")):
            done = self.generate(*words, cache=cache)
            line = done.stderr.decode()
            self.assertEqual((done.returncode, done.stdout, line.count("\n")), (2, b"", 1), line)
            self.assertIn(expected, line)
        done = self.generate("--tier", "disk:/proc/no/where")
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertIn("--tier", done.stderr.decode())


class Proxy(threading.Thread):
    """Hands on what a server sends, up to so many bytes of all connections; then does its trick."""

    def __init__(self, server_port, most, trick):
        super().__init__(daemon=True)
        self.server_port, self.left, self.trick = server_port, most, trick
        self.draw = random.Random(6)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            client, _ = self.listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                client.close()
                continue
            threading.Thread(target=self.up, args=(client, server), daemon=True).start()
            threading.Thread(target=self.down, args=(server, client), daemon=True).start()

    @staticmethod
    def up(client, server):
        try:
            while data := client.recv(65536):
                server.sendall(data)
        except OSError:
            pass
        server.close()

    def down(self, server, client):
        try:
            while data := server.recv(4096):
                self.left -= len(data)
                if self.left < 0:
                    data = self.trick(self, data)
                client.sendall(data)
        except OSError:
            pass
        for end in client, server:  # wakes who reads from it, too
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def garbled(self, data):
        out = bytearray(data)
        for _ in range(1 + len(out) // 200):
            out[self.draw.randrange(len(out))] ^= 1 << self.draw.randrange(8)
        return bytes(out)

    def cut(self, data):
        raise OSError


class Redis(TierTest):
    def setUp(self):
        if not SERVER:
            self.skipTest("neither redis-server nor valkey-server is installed")
        self.process = None
        with socket.create_server(("127.0.0.1", 0)) as one:
            self.port = one.getsockname()[1]
        self.start_server()
        self.addCleanup(self.stop_server)

    def start_server(self):
        self.process = subprocess.Popen(
            [SERVER, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--appendonly", "no", "--dir", str(self.folder)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                time.sleep(0.02)
        self.fail("the server does not start")

    def stop_server(self):
        self.process.kill()
        self.process.wait()

    def tier(self, port=None):
        return f"redis://127.0.0.1:{port or self.port}"

    def test_another_machine_finds_the_prompt(self):
        wanted = self.text()
        for ready in 0, 48:
            self.assertEqual(self.found("--tier", self.tier())[:2], (wanted, ready))

    def test_a_server_that_is_not_there_is_told_once_and_changes_nothing(self):
        wanted = self.text()
        self.stop_server()
        done = self.generate("--tier", self.tier())
        self.assertEqual((done.returncode, done.stdout), (0, wanted))
        self.assertEqual(done.stderr.decode().count("no connection"), 1)
        done = self.generate("--quiet", "--tier", self.tier())
        self.assertEqual((done.stdout, done.stderr), (wanted, b""))

    def run_with(self, trick):
        """Runs through a proxy that lets more and more pass before its trick: in a search, in a
        read, in what is kept."""
        wanted = self.text()
        for most in 0, 2, 9, 20, 300, 900, 3000, 10000:
            proxy = Proxy(self.port, most, trick)
            self.assertEqual(self.text("--tier", self.tier(proxy.port)), wanted, most)

    def test_replies_that_are_garbled_in_the_middle(self):
        self.found("--steps", "33", "--tier", self.tier())
        self.run_with(Proxy.garbled)
        self.assertEqual(self.text("--tier", self.tier()), self.text())

    def test_replies_that_are_cut_in_the_middle(self):
        self.found("--steps", "33", "--tier", self.tier())
        self.run_with(Proxy.cut)

    def test_a_server_that_is_killed_in_the_middle(self):
        def kill(_, data):
            self.process.kill()
            self.process.wait()
            return data

        for most in 0, 9, 300, 900:
            self.found("--steps", "33", "--tier", self.tier())
            proxy = Proxy(self.port, most, kill)
            self.assertEqual(self.text("--tier", self.tier(proxy.port)), self.text(), most)
            self.stop_server()
            self.start_server()

    def test_a_server_that_is_started_again_in_the_middle(self):
        """Empty, as one is that keeps nothing on a disk; the connection is cut once."""
        def start_again(_, data):
            self.stop_server()
            self.start_server()
            return data

        for most in 0, 9, 300, 900:
            self.found("--steps", "33", "--tier", self.tier())
            proxy = Proxy(self.port, most, lambda p, data: start_again(p, data) if once.pop(
                "left", None) else data)
            once = {"left": True}
            self.assertEqual(self.text("--tier", self.tier(proxy.port)), self.text(), most)
        self.assertEqual(self.found("--tier", self.tier())[0], self.text())

    def test_a_server_that_starts_only_in_the_middle(self):
        self.stop_server()
        wanted = self.text("--steps", "90")
        starter = threading.Timer(0.05, self.start_server)
        starter.start()
        text = self.text("--steps", "90", "--tier", self.tier())
        starter.join()
        self.assertEqual(text, wanted)

    def test_a_server_that_is_paused_in_the_middle(self):
        def pause(_, data):
            os.kill(self.process.pid, signal.SIGSTOP)
            return data

        self.found("--steps", "33", "--tier", self.tier())
        for most in 9, 900:
            proxy = Proxy(self.port, most, pause)
            self.assertEqual(self.text("--tier", self.tier(proxy.port)), self.text(), most)
            os.kill(self.process.pid, signal.SIGCONT)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
