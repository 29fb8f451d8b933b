"""Collecting what is wrong with a model, so that one error can tell all of it."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import CompileError, ModelError, Problem, UnsupportedError, VerifyError


class Report:
    """Problems in the order in which they were found, each once.

    malformed: the model breaks a rule of the standard; unsupported: it is valid, but onnxc does not do this. stop: what
    is wrong makes it pointless to look further, as every finding behind it would be a consequence. undefined: names
    that are read, but that nothing defines: that is reported, and what else lacks them is a consequence. ambiguous:
    names that are defined twice at the top of the graphs: reported, and what defines or reads them is passed over.
    """

    def __init__(self) -> None:
        self._problems: dict[Problem, bool] = {}
        self.stop = False
        self.undefined: set[str] = set()
        self.ambiguous: set[str] = set()

    def malformed(self, what: str, where: str = "", remedy: str = "", stop: bool = True) -> None:
        """Add a breach of the standard. stop: see the class."""
        self._problems.setdefault(Problem(what, where, remedy), True)
        self.stop = self.stop or stop

    def unsupported(self, what: str, where: str = "", remedy: str = "") -> None:
        """Add something that onnxc does not do."""
        self._problems.setdefault(Problem(what, where, remedy), False)

    def merge(self, other: Report) -> None:
        """Add the problems of another report, which do not keep anybody from looking further."""
        for p, malformed in other._problems.items():
            self._problems.setdefault(p, malformed)

    def add(self, error: CompileError) -> None:
        """Add the problems of an error, which do not keep anybody from looking further."""
        default = "correct the operands or attributes of this node" if isinstance(error, VerifyError) else ""
        for p in error.problems:
            if isinstance(error, UnsupportedError):
                self.unsupported(p.what, p.where, p.remedy)
            else:
                self.malformed(p.what, p.where, p.remedy or default, stop=False)

    def common(self, others: Sequence[Report]) -> Report:
        """The problems that all of the others have as well."""
        kept = Report()
        kept._problems = {p: m for p, m in self._problems.items() if all(p in o._problems for o in others)}
        return kept

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All of them."""
        return tuple(self._problems)

    def __bool__(self) -> bool:
        """Whether there is any problem."""
        return bool(self._problems)

    @property
    def any_malformed(self) -> bool:
        """Whether the model breaks a rule of the standard."""
        return any(self._problems.values())

    def error(self) -> ModelError | UnsupportedError:
        """All problems as one error: a ModelError if any of them is a malformed model."""
        kind = ModelError if self.any_malformed else UnsupportedError
        return kind(self.problems)

    def raise_if_any(self) -> None:
        """Raise `error()` if there is a problem."""
        if self:
            raise self.error()
