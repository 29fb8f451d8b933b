"""The text form of the IR: `parse(dump(graph), tensors_of(graph)) == graph`.

    graph mlp {
      input x: f32[64,784]
      state w: f32[784,10] = sha256:9f2c81ab03e4d5f6
      const lr: f32[] = 0.1
      z: f32[64,10] = MatMul(x, w)  @ fc1
      m: f32[64,5], _ = MaxPool(z) {kernel_shape=[2], strides=[2]}  @ pool by gradients
      output logits = z
      update w = w.next
    }

Names in quotes are JSON strings; `_` is an absent operand; `@` tells where a node comes from; `#` begins a comment.
A node may go on in the next line: behind its `=`, behind a comma of its lists, before `{` and before `@`.
A node with nested graphs lists them in its braces, and the outer values they read in `capture(..)`.
"""

from compiler.ir.dump import dump, node_text, tensors_of
from compiler.ir.parse import parse, parse_program

__all__ = ["dump", "node_text", "parse", "parse_program", "tensors_of"]
