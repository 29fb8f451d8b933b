"""Finding optimizer updates that are written out in arithmetic: SGD, momentum, Adagrad, RMSProp, Adam, AdamW, Lion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from compiler.ir.definitions.optimizers import STEPS
from compiler.ir.graph import Graph, Origin
from compiler.passes.linear import ONE, Factor, Linear, Quotient, Square
from compiler.passes.scalars import apply, number
from compiler.passes.updates import Update, proposed


def written_updates(graph: Graph) -> list[Update]:
    """Updates of states by arithmetic that a step computes up to rounding. No two have a result in common."""
    return list(_Finder(graph).find())


class _Finder:
    """Looks at each state's update as that of a variable, in an order that finds the moments of others first."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.position = {v: i for i, node in enumerate(graph.nodes) for v in node.results}
        # next value -> state, for states that are computed anew
        self.states = {
            v: s
            for s, (v, _) in ((s, proposed(graph, s)) for s in graph.updates)
            if graph.type(s).dtype in ("f32", "f64") and v in self.position and graph.type(v) == graph.type(s)
        }
        self.claimed: set[str] = set()

    def find(self) -> Iterator[Update]:
        for match in (self.adaptive, self.lion, self.momentum, self.plain):
            for new, x in self.states.items():
                if x not in self.claimed and (update := match(x, new)) is not None:
                    results = [v for v in update.results if v]
                    if self.claimed.isdisjoint(self.states[v] for v in results):
                        self.claimed.update(self.states[v] for v in results)
                        yield update

    # --- the optimizers ----------------------------------------------------------------------------------
    def adaptive(self, x: str, new: str) -> Update | None:
        """X - rate*(V' or g)/(sqrt(H') + epsilon): Adam, RMSProp, Adagrad."""
        form = self.linear(x, lambda v: self.moment(v, x, new))(new)
        of_x = form.pop(x, [])
        if len(form) != 1 or not isinstance(quotient := next(iter(form)), Quotient):
            return None
        rate, over = _one(form[quotient]), quotient.over
        h = self.states[over.tensor]
        of_h = self.linear(x, lambda v: v == h)(over.tensor)
        squares = [a for a in of_h if isinstance(a, Square)]
        if rate is None or of_h.keys() != {h, *squares} or len(squares) != 1:
            return None
        beta, gain, g = _one(of_h[h]), _one(of_h[squares[0]]), squares[0].tensor
        if beta is None or gain is None:
            return None
        scalars = {"rate": -rate, "epsilon": over.epsilon, "inside": over.inside, "beta": beta, "gain": gain}
        gradient, scalars["decay"], scalars["scale"] = self.gradient(g, x)
        scale = scalars["scale"]
        if scale is not None and scalars["decay"] is None and quotient.tensor == gradient:
            quotient, scalars["rate"] = Quotient(g, over), -rate / scale  # the step scales the numerator as well
        if quotient.tensor == g:
            if beta == gain == ONE:
                del scalars["beta"], scalars["gain"]
                return self.update("AdagradStep", x, of_x, scalars, (x, gradient, h), (new, over.tensor))
            return self.update("RmsPropStep", x, of_x, scalars, (x, gradient, h), (new, over.tensor))
        if not self.moment(quotient.tensor, x, new) or quotient.tensor == over.tensor:
            return None
        v = self.states[quotient.tensor]
        of_v = self.linear(x, lambda u: u in (v, g))(quotient.tensor)
        if of_v.keys() != {v, g}:
            return None
        scalars |= {"gain_h": scalars.pop("gain"), "alpha": _one(of_v[v]), "gain_v": _one(of_v[g])}
        if scalars["alpha"] is None or scalars["gain_v"] is None:
            return None
        results = (new, quotient.tensor, over.tensor)
        return self.update("AdamStep", x, of_x, scalars, (x, gradient, v, h), results)

    def lion(self, x: str, new: str) -> Update | None:
        """X - rate*sign(alpha*V + gain_v*G), V' = beta*V + gain_g*G: Lion."""
        form = self.linear(x, lambda v: v == x)(new)
        of_x = form.pop(x, [])
        if len(form) != 1 or not isinstance(sign := next(iter(form)), str):
            return None
        rate, node = _one(form[sign]), self.graph.producer(sign)
        if rate is None or node is None or node.op != "Sign":
            return None
        look = self.linear(x, lambda v: v in self.graph.states)(node.inputs[0])
        for v in look:
            next_v = proposed(self.graph, v)[0] if isinstance(v, str) else ""
            if len(look) != 2 or not isinstance(v, str) or not self.moment(next_v, x, new):
                continue
            g = next(a for a in look if a != v)
            of_v = self.linear(x, {v, g}.__contains__)(next_v)
            factors = [_one(look[v]), _one(look[g]), _one(of_v.get(v, [])), _one(of_v.get(g, []))]
            if isinstance(g, str) and of_v.keys() == {v, g} and None not in factors:
                scalars = dict(zip(("alpha", "gain_v", "beta", "gain_g"), factors, strict=True))
                return self.update("LionStep", x, of_x, {"rate": -rate, **scalars}, (x, g, v), (new, next_v))
        return None

    def momentum(self, x: str, new: str) -> Update | None:
        """X - rate*V' - direct*g, V' = alpha*V + beta*g: heavy ball and Nesterov's."""
        form = self.linear(x, lambda v: self.moment(v, x, new))(new)
        of_x = form.pop(x, [])
        velocities = [a for a in form if isinstance(a, str) and self.moment(a, x, new) and self.goes_on(a, x)]
        if len(velocities) != 1:
            return None
        rate, next_v = _one(form.pop(velocities[0])), velocities[0]
        v = self.states[next_v]
        of_v = self.linear(x, lambda u: u in (v, x))(next_v)
        alpha, decayed = _one(of_v.pop(v, [])), _one(of_v.pop(x, []))
        if len(of_v) != 1 or not isinstance(g := next(iter(of_v)), str):
            return None
        beta, direct = _one(of_v[g]), _one(form.pop(g, []))
        if form or rate is None or alpha is None or beta is None or self.graph.type(g) != self.graph.type(x):
            return None
        decay = None if decayed is None else decayed / beta
        if direct is not None and decay is not None:
            if len(of_x) != 2 or of_x[0] != ONE or not _close(of_x[1], direct * decay):
                return None
            of_x = [ONE]
        scalars = {
            "alpha": alpha,
            "beta": beta,
            "rate": -rate,
            "direct": None if direct is None else -direct,
            "decay": decay,
        }
        return self.update("MomentumStep", x, of_x, scalars, (x, g, v), (new, next_v))

    def plain(self, x: str, new: str) -> Update | None:
        """X - rate*(G + decay*X): gradient descent. A running average, which adds to what it keeps, is none."""
        form = self.linear(x, lambda v: v == x)(new)
        of_x = form.pop(x, [])
        if len(form) != 1 or not isinstance(g := next(iter(form)), str) or self.graph.type(g) != self.graph.type(x):
            return None
        rate = _one(form[g])
        if rate is None or (rate.number > 0 and (rate.known or ONE not in of_x)):
            return None
        decay = None
        if len(of_x) == 2 and ONE in of_x:
            other = of_x[1] if of_x[0] == ONE else of_x[0]
            if not (other / rate).under:
                of_x, decay = [ONE], other / rate
        return self.update("SgdStep", x, of_x, {"rate": -rate, "decay": decay}, (x, g), (new,))

    # --- their parts -------------------------------------------------------------------------------------
    def linear(self, x: str, stops: Callable[[str], bool]) -> Linear:
        """Forms of values like x."""
        return Linear(self.graph, x, lambda v: v == x or stops(v))

    def moment(self, value: str, x: str, new: str) -> bool:
        """Whether a value is the next one of another state like x."""
        state = self.states.get(value)
        return state is not None and value != new and state != x and self.graph.type(state) == self.graph.type(x)

    def goes_on(self, value: str, x: str) -> bool:
        """Whether the next value of a state comes from its old one by arithmetic: an accumulated gradient does not."""
        state = self.states[value]
        return state in self.linear(x, lambda v: v == state)(value)

    def gradient(self, g: str, x: str) -> tuple[str, Factor | None, Factor | None]:
        """(G, decay, scale) if g is scale*G + decay*X, else (g, None, None); None for no decay, a scale of 1."""
        form = self.linear(x, lambda v: False)(g)
        decayed = form.pop(x, [])
        if len(form) == 1 and len(decayed) <= 1:
            ((atom, factors),) = form.items()
            scale = _one(factors)
            if (
                isinstance(atom, str)
                and scale is not None
                and scale.number
                and self.graph.type(atom) == self.graph.type(x)
            ):
                return atom, _one(decayed), None if scale == ONE else scale
        return g, None, None

    def update(
        self,
        step: str,
        x: str,
        of_x: list[Factor],
        factors: Mapping[str, Factor | None],
        tensors: tuple[str, ...],
        results: tuple[str, ...],
    ) -> Update | None:
        """The update, what is left of X's own factors being a shrinking of X; None if they are not understood."""
        dtype = self.graph.type(x).dtype
        scalars = {k: f.scalar(self.graph, dtype) for k, f in factors.items() if f is not None}
        if len(of_x) == 2 and ONE in of_x:
            other = of_x[1] if of_x[0] == ONE else of_x[0]
            scalars["shrink"] = (-other).scalar(self.graph, dtype)
        elif len(of_x) == 1 and of_x != [ONE]:
            scalars["shrink"] = apply("Sub", number(1, dtype), of_x[0].scalar(self.graph, dtype))
        elif of_x != [ONE]:
            return None
        definition = STEPS[f"onnxc.{step}"]
        at = max(self.position[v] for v in results)
        node = self.graph.producer(results[0])
        return Update(
            definition,
            tuple((k, scalars[k]) for k in definition.scalars if k in scalars),
            tensors,
            results,
            Origin(node.origin.node if node else "", "fuse_optimizer"),
            at,
            written=True,
        )


def _one(factors: list[Factor]) -> Factor | None:
    """The sum of factors as one; None if there is none, or the sum is no product."""
    if len(factors) > 1 and all(f.known for f in factors):
        return Factor(sum(f.number for f in factors))
    return factors[0] if len(factors) == 1 else None


def _close(a: Factor, b: Factor) -> bool:
    """Equal up to the rounding of their numbers."""
    return (a.over, a.under) == (b.over, b.under) and math.isclose(a.number, b.number, rel_tol=1e-6)
