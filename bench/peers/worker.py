"""Measures one peer on one case, in a process of its own, and prints one JSON object: the figures
of the fastest of the peer's forms.

    worker.py PEER CASE [FORM]   (CASE: the fields of case.Case, as JSON)

Each form gets a process, as some abort where they have no kernel.
"""

import importlib
import json
import subprocess
import sys

from case import Case, result


def said(done):
    """The line in which a process told why it failed."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line or "ASSERT" in line]
    return (telling or lines or [f"exit status {done.returncode}"])[-1]


def fastest(forms):
    results, failures = [], []
    for form in forms:
        words = [sys.executable, *sys.argv, form]
        done = subprocess.run(words, capture_output=True, check=False, text=True)
        if done.returncode == 0:
            results.append(json.loads(done.stdout))
        else:
            failures.append(f"{form}: {said(done)}")
    if results:
        return min(results, key=lambda one: one["p50_ms"]) | {"failed": failures}
    return {"skipped": "; ".join(failures)}


def main(name, fields, form=None):
    case = Case(**json.loads(fields))
    try:
        peer = importlib.import_module(f"peer_{name}")
        forms = peer.forms(case)
    except ImportError as error:
        return {"skipped": f"not installed: {error}"}
    except NotImplementedError as error:
        return {"skipped": str(error)}
    if form is None:
        return fastest(forms)
    peer.prepare(case)
    return result(case, form, forms[form](case))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
