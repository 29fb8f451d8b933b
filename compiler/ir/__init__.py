"""The intermediate representation: graphs of ONNX operators at one opset, typed, with no hidden edges.

types     TensorType, Tensor                 graph     Node, Graph, Program
builder   Builder: the only way to make one  reading   ONNX nodes -> builder
infer     types, by onnx's inference         known     values known at compile time
bodies    definitions of ops by simpler ones evaluate, interpret   meaning, by onnx.reference
text      dump, parse                        verify    the invariants; checks: what each op demands of its operands
"""
