"""Numba's passes as kernels need them: bytecode -> Numba's IR -> types -> LLVM IR."""

from typing import Any

from numba.core.analysis import dead_branch_prune, rewrite_semantic_constants
from numba.core.compiler import CompilerBase
from numba.core.ir_utils import build_definitions
from numba.core.ssa import reconstruct_ssa
from numba.core.targetconfig import ConfigStack
from numba.core.transforms import canonicalize_cfg
from numba.core.typed_passes import NativeLowering, NoPythonBackend, NopythonTypeInference, PreLowerStripPhis
from numba.core.untyped_passes import FixupArgs, TranslateByteCode

from compiler.errors import BuildError


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
            NativeLowering().run_pass(state)
            NoPythonBackend().run_pass(state)
        state.pipeline = None
        return state.cr
