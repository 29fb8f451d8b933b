"""LLVM IR -> object code: one run of LLVM's pipeline for one target, with more or less effort (0 to 3)."""

import functools
from typing import Any

import llvmlite.binding as ll


@functools.cache
def _initialize() -> None:
    ll.initialize_all_targets()
    ll.initialize_all_asmprinters()


def machine(cpu: str, features: str, triple: str, effort: int = 3) -> Any:
    """LLVM's target machine. RuntimeError: LLVM does not know the triple."""
    _initialize()
    return ll.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=effort, reloc="pic", codemodel="default"
    )


def optimized(text: str, tm: Any, effort: int = 3) -> Any:
    """The optimized LLVM module of IR text."""
    module = ll.parse_assembly(text)
    module.triple, module.data_layout = tm.triple, str(tm.target_data)
    module.verify()
    options = ll.create_pipeline_tuning_options(speed_level=effort)
    options.loop_vectorization, options.slp_vectorization = effort > 1, False
    builder = ll.create_pass_builder(tm, options)
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    return module


def compile_ir(text: str, cpu: str, features: str, triple: str, effort: int) -> bytes:
    """Object code of IR text."""
    tm = machine(cpu, features, triple, effort)
    return bytes(tm.emit_object(optimized(text, tm, effort)))
