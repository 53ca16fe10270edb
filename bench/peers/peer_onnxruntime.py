"""ONNX Runtime's GroupQueryAttention; past and present are the same buffers."""

import functools

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from case import Form

DTYPES = {"f32": (np.float32, TensorProto.FLOAT), "f16": (np.float16, TensorProto.FLOAT16)}


def prepare(case):
    pass


def model(case, kind):
    """The node alone. The new positions are appended to the buffers in the same run."""
    wide, narrow = case.q_heads * case.dim, case.kv_heads * case.dim
    buffer = [1, case.kv_heads, case.context, case.dim]
    inputs = [
        ("query", kind, [1, case.q_len, wide]),
        ("key", kind, [1, case.q_len, narrow]),
        ("value", kind, [1, case.q_len, narrow]),
        ("past_key", kind, buffer),
        ("past_value", kind, buffer),
        ("seqlens_k", TensorProto.INT32, [1]),
        ("total_sequence_length", TensorProto.INT32, [1]),
    ]
    outputs = [
        ("output", kind, [1, case.q_len, wide]),
        ("present_key", kind, buffer),
        ("present_value", kind, buffer),
    ]
    node = helper.make_node(
        "GroupQueryAttention",
        [name for name, *_ in inputs],
        [name for name, *_ in outputs],
        domain="com.microsoft",
        num_heads=case.q_heads,
        kv_num_heads=case.kv_heads,
    )
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def make(case):
    dtype, kind = DTYPES[case.dtype]
    options = ort.SessionOptions()
    options.intra_op_num_threads = case.threads
    session = ort.InferenceSession(model(case, kind), options, ["CPUExecutionProvider"])
    q, k, v = case.inputs()
    new = slice(case.context - case.q_len, None)

    def value(x):
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(x, dtype), "cpu", 0)

    def positions(x):
        """[heads][n][dim] as [1][n][heads · dim]"""
        return value(x.transpose(1, 0, 2).reshape(1, x.shape[1], -1))

    ints = [np.array([n], np.int32) for n in (case.context - 1, case.context)]
    seqlens, total = (ort.OrtValue.ortvalue_from_numpy(x, "cpu", 0) for x in ints)
    out = value(np.zeros((1, case.q_len, case.q_heads * case.dim)))
    few = {"query": positions(q), "key": positions(k[:, new]), "value": positions(v[:, new])}
    few |= {"seqlens_k": seqlens, "total_sequence_length": total}
    kept, runs = [few], []
    for _ in range(case.layers):
        binding = session.io_binding()
        buffers = {"key": value(k[None].copy()), "value": value(v[None].copy())}
        kept.append(buffers)
        for name, given in few.items():
            binding.bind_ortvalue_input(name, given)
        for side, buffer in buffers.items():
            binding.bind_ortvalue_input(f"past_{side}", buffer)
        binding.bind_ortvalue_output("output", out)
        for side, buffer in buffers.items():
            binding.bind_ortvalue_output(f"present_{side}", buffer)
        runs.append(functools.partial(session.run_with_iobinding, binding))

    def output():
        del kept[1:]
        return out.numpy().reshape(case.q_len, case.q_heads, case.dim).transpose(1, 0, 2)

    return Form(runs, output)


def forms(case):
    if case.dtype not in DTYPES:
        raise NotImplementedError(f"no kernel for {case.dtype} on the CPU")
    return {"GroupQueryAttention": make}
