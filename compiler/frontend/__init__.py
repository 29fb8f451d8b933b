"""From ONNX models to the IR: `load` reads and checks a model, `Source.program` makes the graphs for given sizes.

files -> structure, training (what is wrong with it?) -> parts: for each graph flatten (gradient: names to operands;
functions: inline; upgrade, adapters: to the canonical opset) -> program, build: typed graphs.
"""

from compiler.frontend.source import NeedsDims, NeedsStatic, Source, check, load

__all__ = ["NeedsDims", "NeedsStatic", "Source", "check", "load"]
