"""Values that are copies: `onnxc.Copy`, where the plan needs memory of its own, and shapes."""

import numpy as np

from compiler.codegen.calls import Call, Data, Site, lowers
from compiler.codegen.kernels.strided import copy_call
from compiler.ir.types import Tensor


@lowers("onnxc.Copy")
def copy(site: Site) -> list[Call]:
    """The bytes of the input."""
    return [copy_call(site.read(0), site.write(), site.type(0).nbytes)]


@lowers("Shape", "Size")
def shape(site: Site) -> list[Call]:
    """Known from the type; what is left of these after folding is a constant to copy."""
    dims = site.type(0).shape
    if site.node.op == "Size":
        value = np.array(site.type(0).size, np.int64)
    else:
        value = np.array(dims, np.int64)[slice(site.attr("start", 0), site.attr("end"))]
    return [copy_call(Data(Tensor(value)), site.write(), value.nbytes)]
