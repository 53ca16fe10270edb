"""ggml, and ik_llama.cpp's ggml, through the C functions that both have."""

import ctypes
import functools
import importlib.util
from pathlib import Path

import numpy as np

from case import Form, bf16_words

TYPES = {"f32": 0, "f16": 1, "bf16": 30}  # enum ggml_type
SLACK_BYTES = 64 << 20  # of a context: tensors, a graph, small results

void, size, i64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", size), ("mem_buffer", void), ("no_alloc", ctypes.c_bool)]


class ThreadpoolParams(ctypes.Structure):
    _fields_ = [
        ("cpumask", ctypes.c_bool * 512),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    ]


class Library:
    """Calls by name, whichever of the libraries has it. Pointers come back as void *."""

    def __init__(self, files):
        self.parts = [ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL) for file in files]

    def has(self, name):
        return any(hasattr(part, name) for part in self.parts)

    def __getattr__(self, name):
        function = next(getattr(part, name) for part in self.parts if hasattr(part, name))
        function.restype = void
        return function

    def tensor(self, context, dtype, *extents):
        dims = (i64 * len(extents))(*extents)
        return void(self.ggml_new_tensor(context, TYPES[dtype], len(extents), dims))

    def write(self, tensor, array, dtype):
        words = {"f32": np.float32, "f16": np.float16}
        given = np.ascontiguousarray(array, words.get(dtype, np.float32))
        if dtype == "bf16":
            given = bf16_words(given)
        ctypes.memmove(self.ggml_get_data(tensor), given.ctypes.data, given.nbytes)


def files_of(package):
    found = importlib.util.find_spec(package)
    if found is None:
        raise ImportError(f"no package {package}")
    folder = Path(found.origin).parent
    parts = ["-base", "-cpu"] if package == "libggml" else [""]
    return [next(folder.glob(f"lib*/libggml{part}.so")) for part in parts]


@functools.cache
def library(package):
    return Library(files_of(package))


@functools.cache
def backend(package, threads):
    """The CPU backend; its threads wait for work between graphs, where it can keep any."""
    ggml = library(package)
    made = void(ggml.ggml_backend_cpu_init())
    ggml.ggml_backend_cpu_set_n_threads(made, threads)
    if ggml.has("ggml_threadpool_new"):
        params = ThreadpoolParams()
        ggml.ggml_threadpool_params_init(ctypes.byref(params), threads)
        pool = void(ggml.ggml_threadpool_new(ctypes.byref(params)))
        ggml.ggml_backend_cpu_set_threadpool(made, pool)
    return made


def prepare(case):
    pass


def flash(ggml, context, case, q, k, v, mask):
    scale = ctypes.c_float(case.dim**-0.5)
    zero = ctypes.c_float(0)
    return void(ggml.ggml_flash_attn_ext(context, q, k, v, mask, scale, zero, zero))


def plain(ggml, context, case, q, k, v, mask):
    """What llama.cpp does without flash attention; v is [dim][context]."""
    scale = ctypes.c_float(case.dim**-0.5)
    scores = void(ggml.ggml_mul_mat(context, k, q))
    weights = ggml.ggml_soft_max_ext(context, scores, mask, scale, ctypes.c_float(0))
    return void(ggml.ggml_mul_mat(context, v, void(weights)))


class Layer:
    """One graph with keys and values of its own."""

    def __init__(self, package, case, inputs, form):
        ggml, self.case, self.form = library(package), case, form
        q, k, v = inputs
        between = 0 if form != "plain" else 4 * case.q_heads * case.q_len * case.context
        memory = case.kv_bytes + 2 * between + 8 * q.nbytes + SLACK_BYTES
        self.ggml = ggml
        self.context = void(ggml.ggml_init(InitParams(memory, None, False)))
        self.backend = backend(package, case.threads)
        query = ggml.tensor(self.context, "f32", case.dim, case.q_len, case.q_heads)
        ggml.write(query, q, "f32")
        mask = None
        if case.q_len > 1:
            mask = ggml.tensor(self.context, "f16", case.context, case.q_len)
            ggml.write(mask, np.where(case.hidden(), -np.inf, 0), "f16")
        keys = self.store(k)
        values = self.store(v.transpose(0, 2, 1) if form == "plain" else v)
        attend = plain if form == "plain" else flash
        self.out = attend(ggml, self.context, case, query, keys, values, mask)
        self.graph = void(ggml.ggml_new_graph(self.context))
        ggml.ggml_build_forward_expand(self.graph, self.out)

    def __del__(self):
        self.ggml.ggml_free(self.context)

    def store(self, x):
        """[heads][a][b], head by head; or a by a, and then seen head by head."""
        (heads, a, b), dtype = x.shape, self.case.dtype
        if self.form != "token-major":
            made = self.ggml.tensor(self.context, dtype, b, a, heads)
            self.ggml.write(made, x, dtype)
            return made
        made = self.ggml.tensor(self.context, dtype, b, heads, a)
        self.ggml.write(made, x.transpose(1, 0, 2), dtype)
        return void(self.ggml.ggml_permute(self.context, made, 0, 2, 1, 3))

    def run(self):
        status = self.ggml.ggml_backend_graph_compute(self.backend, self.graph)
        if status:
            raise RuntimeError(f"ggml_backend_graph_compute returned {status}")

    def output(self):
        count = self.case.q_heads * self.case.q_len * self.case.dim
        data = (ctypes.c_float * count).from_address(self.ggml.ggml_get_data(self.out))
        heads, n = self.case.q_heads, self.case.q_len
        if self.form == "plain":
            return np.array(data).reshape(heads, n, self.case.dim)
        return np.array(data).reshape(n, heads, self.case.dim).transpose(1, 0, 2)


def make(case, package, form):
    inputs = case.inputs()
    layers = [Layer(package, case, inputs, form) for _ in range(case.layers)]
    return Form([layer.run for layer in layers], layers[0].output)


NAMES = {
    "head-major": "flash attention, head-major",
    "token-major": "flash attention, token-major",
    "plain": "matrix products",
}


def forms(case, package="libggml"):
    files_of(package)  # or an ImportError
    return {
        name: functools.partial(make, package=package, form=form) for form, name in NAMES.items()
    }
