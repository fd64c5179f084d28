#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Calls an operation on tensors of PyTorch, in place of a copy: their addresses, and PyTorch's current stream.

python3 torch_tensors.py
"""

import ctypes

import torch
from cairn_table import BF16, RmsnormArgs, Table


def rmsnorm(table, x, weight, eps=1e-6):
    """The norm of each row of x, in bf16; asynchronous on PyTorch's current stream, as PyTorch's own operations are."""
    if x.dtype != torch.bfloat16 or weight.dtype != torch.bfloat16 or not (x.is_contiguous() and weight.is_contiguous()):
        raise TypeError("x and weight must be contiguous and bf16")
    if x.is_cuda == table.on_host or weight.device != x.device:
        raise TypeError(f"x is on {x.device}, weight on {weight.device}: not where the table's memory is")
    out = torch.empty_like(x)
    stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else None
    args = RmsnormArgs(
        out=out.data_ptr(),
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        rows=x.numel() // x.shape[-1],
        dim=x.shape[-1],
        dtype=BF16,
        eps=eps,
    )
    table.rmsnorm(ctypes.byref(args), ctypes.c_void_p(stream))
    return out


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    table = Table(device)
    torch.manual_seed(1)
    x = torch.randn(5, 256, dtype=torch.bfloat16, device=device)
    weight = torch.randn(256, dtype=torch.bfloat16, device=device)
    ours = rmsnorm(table, x, weight)
    wide = x.double()
    theirs = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    # bf16 has 8 significant bits, so rounding to nearest changes a value by at most 2^-8 of it; fp32 sums add far less
    error = ((ours.double() - theirs).abs() / theirs.abs()).max().item()
    print(f"{device}: largest error {error:.2e} of the value")
    assert error <= 2**-8 + 2**-16, error


if __name__ == "__main__":
    main()
