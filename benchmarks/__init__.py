"""Measures the training step against what else there is: `python -m benchmarks` (docs/benchmarks.md).

workloads   the networks as ONNX, with weights and a batch
cases       a workload as files, which every worker reads
peers       onnxc, PyTorch, JAX and ONNX Runtime: how each makes a step of the files
worker      a process that runs one of them, told by lines what to do
race        the workers of a case, in turns
flops       operations of a step, counted from the ONNX graph
limits      what the machine can do at most: multiply-adds and memory traffic
report      medians, ratios, the tables             picture     the same as a picture
"""
