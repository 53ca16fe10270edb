"""ik_llama.cpp: its ggml has attention kernels of its own."""

import functools

import peer_ggml

prepare = peer_ggml.prepare
forms = functools.partial(peer_ggml.forms, package="ik_llama_cpp")
