"""The layer check passes this repository and finds every kind of violation in a copy of it."""

import importlib.machinery
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["src", "include", "tools", "examples", "bench", "bindings"]


SCRIPT = ROOT / "scripts" / "check-layers"

loader = importlib.machinery.SourceFileLoader("check_layers", str(SCRIPT))
check_layers = importlib.util.module_from_spec(
    importlib.util.spec_from_loader(loader.name, loader))
sys.dont_write_bytecode = True
loader.exec_module(check_layers)


class CheckLayers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        for name in FOLDERS:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.root / name)

    def plant(self, file, include):
        """Appends an include to a file, and makes both the file and what it names if need be."""
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(f"{lines}#include {include}\n", encoding="utf-8")
        return lines.count("\n") + 1

    def make(self, file):
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def found(self):
        return list(check_layers.violations(self.root))

    def assert_found(self, file, include, words):
        line = self.plant(file, include)
        found = self.found()
        self.assertEqual(len(found), 1, found)
        self.assertIn(f"{file}:{line}: ", found[0])
        self.assertIn(words, found[0])

    def test_this_repository_passes(self):
        self.assertEqual(list(check_layers.violations(ROOT)), [])

    def test_the_command_prints_and_exits_as_it_found(self):
        def run():
            return subprocess.run([sys.executable, SCRIPT, self.root], stdout=subprocess.PIPE,
                                  text=True, check=False)
        passes = run()
        self.assertEqual((passes.returncode, passes.stdout), (0, ""))
        self.plant("src/base/status.c", "<kvcache/pool.h>")
        fails = run()
        self.assertEqual(fails.returncode, 1)
        self.assertIn("src/base/status.c:", fails.stdout)

    def test_a_folder_may_include_itself_and_lower_ones(self):
        self.make("src/cache/planted.h")
        self.plant("src/cache/other.c", '"cache/planted.h"')
        self.plant("src/cache/other.c", '"base/error.h"')
        self.plant("src/cache/other.c", "<kvcache/pool.h>")
        self.assertEqual(self.found(), [])

    def test_a_private_header_of_a_higher_folder_is_found(self):
        self.make("src/array/planted.h")
        self.assert_found("src/base/status.c", '"array/planted.h"', "lies above base")

    def test_a_public_header_of_a_higher_level_is_found(self):
        self.assert_found("src/base/status.c", "<kvcache/pool.h>", "speaks for memory")

    def test_the_header_of_everything_is_found_inside(self):
        self.assert_found("src/base/status.c", "<kvcache/kvcache.h>", "name the header")

    def test_vm_h_outside_of_memory_is_found(self):
        self.make("src/memory/vm.h")
        self.assert_found("src/cache/planted.c", '"memory/vm.h"', "for memory only")

    def test_attention_that_looks_into_a_cache_is_found(self):
        self.make("src/cache/planted.h")
        self.assert_found("src/attention/planted.c", '"cache/planted.h"', "cache/view.h only")

    def test_store_that_includes_attention_is_found(self):
        self.make("src/attention/planted.h")
        self.assert_found("src/store/planted.c", '"attention/planted.h"', "through nothing only")

    def test_store_that_includes_what_the_core_does_not_export_is_found(self):
        self.plant("src/store/planted.c", '"base/error.h"')
        self.assertEqual(self.found(), [])
        for hidden in ["base/alloc.h", "array/view.h", "cache/view.h", "memory/pool.h"]:
            with self.subTest(hidden):
                file = self.root / "src" / "store" / "planted.c"
                file.unlink()
                self.assert_found("src/store/planted.c", f'"{hidden}"', "store sees")

    def test_a_file_beside_named_without_its_folder_is_found(self):
        self.assert_found("src/base/status.c", '"error.h"', "folder/file.h")

    def test_an_included_source_is_found(self):
        self.assert_found("src/base/status.c", '"base/dtype.c"', "no header")

    def test_a_program_that_includes_the_library_s_own_is_found(self):
        for folder in ["tools", "examples/planted", "bench", "bindings/planted"]:
            with self.subTest(folder):
                file = self.root / folder / "planted.c"
                self.assert_found(f"{folder}/planted.c", '"base/error.h"', "<kvcache/")
                file.unlink()

    def test_a_way_round_by_dots_is_found(self):
        self.make("tools/own.h")
        self.assert_found("tools/planted.c", '"../src/base/error.h"', "the library's own")

    def test_a_public_header_that_includes_a_private_one_is_found(self):
        self.assert_found("include/kvcache/pool.h", '"base/error.h"', "not public")

    def test_a_public_header_that_includes_a_higher_one_is_found(self):
        self.assert_found("include/kvcache/dtype.h", "<kvcache/cache.h>", "lies above base")

    def test_a_public_header_without_a_level_is_found(self):
        self.make("include/kvcache/planted.h")
        self.assertIn("include/kvcache/planted.h:0: has no level", self.found()[0])

    def test_a_folder_without_a_level_is_found(self):
        self.make("src/planted/planted.c")
        self.assertIn("src/planted:0: has no level", self.found()[0])


if __name__ == "__main__":
    unittest.main()
