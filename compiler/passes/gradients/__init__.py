"""Differentiation: the pass `expand_gradients`, its driver, and a rule for each operator (`rules`)."""

from compiler.ir import definitions
from compiler.passes.gradients import rules
from compiler.passes.gradients.expand import expand_gradients
from compiler.passes.gradients.rule import RULES

__all__ = ["RULES", "definitions", "expand_gradients", "rules"]
