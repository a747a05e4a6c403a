"""Matrix products of oneDNN instead of MKL's, on AMD processors.

torch multiplies float32 matrices on x86 with MKL, which keeps its fast kernels to Intel's processors: on an EPYC with
AVX-512 it reached 95 GFLOP/s a core where oneDNN, which torch ships too, reached 200 (docs/decisions).
Guarantee: the same products, rounded otherwise in the last bits.
Known weakness: the operator is the one that torch's own compiler uses, no part of its documented interface; a model
stays as it is where a torch lacks it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def helps() -> bool:
    """Whether this machine's linear layers are faster with oneDNN."""
    import torch

    try:
        vendor = "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        vendor = False
    there = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return vendor and there and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def use_onednn(module: torch.nn.Module) -> None:
    """Let every float32 linear layer of a module, on a CPU, multiply with oneDNN."""
    import torch

    class Linear(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                input, self.weight, self.bias, "none", [], ""
            )
            return product

    for layer in module.modules():
        if type(layer) is torch.nn.Linear and layer.weight.dtype == torch.float32:
            layer.__class__ = Linear
