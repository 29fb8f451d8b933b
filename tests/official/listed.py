"""The operators that the first milestone promises, forward and gradient."""

from __future__ import annotations

OPS = frozenset(
    """
    Add Sub Mul Div Neg Abs Exp Log Sqrt Reciprocal Pow Max Min Sum Mean Clip Where Equal Less LessOrEqual Greater
    GreaterOrEqual And Or Not Identity Cast Relu LeakyRelu Sigmoid Tanh Softplus Erf Gelu Softmax LogSoftmax Gemm
    MatMul Conv MaxPool AveragePool GlobalAveragePool BatchNormalization LayerNormalization Dropout ReduceSum
    ReduceMean ReduceMax ReduceMin ReduceSumSquare ReduceL2 CumSum Reshape Flatten Squeeze Unsqueeze Transpose
    Concat Split Slice Gather Expand Tile Pad Shape Size Constant ConstantOfShape Range OneHot ArgMax
    SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss
    """.split()  # noqa: SIM905  (a table, not a list of strings)
)
