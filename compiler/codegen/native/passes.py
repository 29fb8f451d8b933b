"""Numba's passes as kernels need them: bytecode -> Numba's IR -> types -> LLVM IR."""

import collections
from typing import Any

from numba.core import ir
from numba.core.analysis import (
    compute_cfg_from_blocks,
    compute_use_defs,
    dead_branch_prune,
    must_use_alloca,
    rewrite_semantic_constants,
)
from numba.core.compiler import CompilerBase
from numba.core.ir_utils import build_definitions
from numba.core.lowering import Lower
from numba.core.ssa import reconstruct_ssa
from numba.core.targetconfig import ConfigStack
from numba.core.transforms import canonicalize_cfg
from numba.core.typed_passes import NativeLowering, NoPythonBackend, NopythonTypeInference, PreLowerStripPhis
from numba.core.untyped_passes import FixupArgs, TranslateByteCode

from compiler.errors import BuildError


def _assigned_once(blocks: dict[int, Any]) -> set[str]:
    """Variables with one assignment, which every way to a use of them passes.

    Blocks are lowered in order: one that a use comes before in that order is not among them.
    """
    found = compute_use_defs(blocks)
    homes = {name: at for at, names in found.defmap.items() for name in names}
    count = collections.Counter(s.target.name for b in blocks.values() for s in b.find_insts(ir.Assign))
    once = {name for name, n in count.items() if n == 1 and name in homes}.difference(must_use_alloca(blocks))
    before = compute_cfg_from_blocks(blocks).dominators()
    for at, names in found.usemap.items():
        once -= {name for name in names & once if homes[name] >= at or homes[name] not in before.get(at, ())}
    return once


class _Lower(Lower):
    """Numba's, which keeps in memory what is used outside of the block that assigns it; here only if it must be."""

    def init(self) -> None:
        super().init()
        self._singly_assigned_vars |= _assigned_once(self.blocks)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        """Store the value of a variable, without loading the last one to release it: numbers need no release."""
        if name in self.varmap:
            self.builder.store(value, self.varmap[name])
        else:
            super().storevar(value, name, argidx)


class _NativeLowering(NativeLowering):
    @property
    def lowering_class(self) -> type[Lower]:
        return _Lower


class Compiler(CompilerBase):
    """The passes for numbers: without those for objects, closures and arrays, 2/3 of the time.

    Numba's own pipelines also compute where every variable dies, four times, to insert a deletion there. Numbers need
    none, and deletions were half of all statements that were lowered.
    """

    def _compile_core(self) -> Any:
        state = self.state
        with ConfigStack().enter(state.flags.copy()):
            TranslateByteCode().run_pass(state)
            FixupArgs().run_pass(state)
            function = state.func_ir
            if function.is_generator:
                raise BuildError(f"{function.func_id.func_qualname} yields: compiled code cannot")
            function.blocks = canonicalize_cfg(function.blocks)
            rewrite_semantic_constants(function, state.args)
            dead_branch_prune(function, state.args)
            function.generator_info = None
            state.func_ir = reconstruct_ssa(function)
            state.func_ir._definitions = build_definitions(state.func_ir.blocks)
            NopythonTypeInference().run_pass(state)
            state.func_ir = PreLowerStripPhis()._strip_phi_nodes(state.func_ir)
            state.func_ir._definitions = build_definitions(state.func_ir.blocks)
            _NativeLowering().run_pass(state)
            NoPythonBackend().run_pass(state)
        state.pipeline = None
        return state.cr
