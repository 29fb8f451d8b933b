"""From ONNX models to the IR: `load` reads and checks a model, `Source.program` makes the graphs for given sizes.

files       the message, from a path or bytes          weights    initializers, external data
structure   names, order, imports, functions           training   the rules of training_info
operators   is each operator known and supported?      report     all problems in one error
parts       the graphs of a model; for each, flatten: join, then
  gradient  names in strings become operands           functions  calls are inlined
  schema    malformed nodes are left out               upgrade    to the canonical opset (converter, adapters)
program     step, inference, initialization            build      nodes into the IR, with static types
"""

from compiler.frontend.attempts import accepted, best_attempt, check, load
from compiler.frontend.source import NeedsDims, NeedsStatic, Source, read

__all__ = ["NeedsDims", "NeedsStatic", "Source", "accepted", "best_attempt", "check", "load", "read"]
