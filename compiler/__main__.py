"""`python -m compiler` is the command `onnxc`."""

from compiler.cli import main

main()
