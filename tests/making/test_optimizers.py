"""Optimizers in the graph against their formulas in numpy; what becomes of them in the compiler; wrong uses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import compiler
from compiler.api import program
from compiler.errors import InputError, UnsupportedError
from compiler.frontend.making.optimizers import optimizer_spec
from tests.making.formulas import Array, cosine, one_cycle, trajectory
from tests.making.optimizer_models import random_gradients, with_optimizers
from tests.models.concatenation import concatenation

SPAN = 9
WARM = {"name": "cosine", "total_steps": 7, "warmup": 2, "warmup_start": 0.1, "eta_min": 0.001}
CYCLE = {"name": "one_cycle", "total_steps": 8}


def steady(lr: float) -> Callable[[int], float]:
    return lambda done: lr


def warm(done: int) -> float:
    return 0.05 * (0.1 + 0.9 * done / 2) if done < 2 else cosine(0.05, 0.001, (done - 2) / 5)


def cycle(done: int) -> float:
    return one_cycle(0.05, 8, done, 0.002, 2e-7)


def cycled_momentum(done: int) -> float:
    return one_cycle(0.85, 8, done, 0.95, 0.95)


# id: (what the user writes, formula, its options, rate, further arguments of `trajectory`)
Case = tuple[Mapping[str, Any], str, Mapping[str, Any], Callable[[int], float], Mapping[str, Any]]


def plain(name: str, formula: str = "", lr: float = 0.05, **options: Any) -> Case:
    return {"optimizer": name, "lr": lr, **options}, formula or name, options, steady(lr), {}


CASES: dict[str, Case] = {
    "sgd": plain("SGD", "sgd"),
    "sgd_decay": plain("sgd", weight_decay=0.1),
    "momentum": ({"optimizer": "momentum", "lr": 0.05}, "sgd", {"momentum": 0.9}, steady(0.05), {}),
    "dampening": plain("sgd", momentum=0.8, dampening=0.3, weight_decay=0.1),
    "nesterov": (
        {"optimizer": "nesterov", "lr": 0.05, "weight_decay": 0.1},
        "sgd",
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        steady(0.05),
        {},
    ),
    "adagrad": plain("adagrad"),
    "adagrad_decay": plain("adagrad", lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.2, eps=1e-6),
    "rmsprop": plain("rmsprop", weight_decay=0.1),
    "rmsprop_centered": plain("rmsprop", centered=True, alpha=0.9),
    "rmsprop_momentum": plain("rmsprop", momentum=0.9, eps=1e-3),
    "adam": plain("adam"),
    "adam_decay": plain("adam", weight_decay=0.1, betas=(0.8, 0.95), eps=1e-4),
    "amsgrad": plain("adam", amsgrad=True),
    "adamw": plain("adamw"),
    "adamw_decay": plain("adamw", weight_decay=0.3),
    "lion": plain("lion", weight_decay=0.1),
    "onnx_adam": plain("onnx.adam", norm_coefficient=0.1, norm_coefficient_post=0.01),
    "onnx_adagrad": plain("onnx.adagrad", decay_factor=0.1, norm_coefficient=0.1),
    "onnx_momentum": plain("onnx.momentum", alpha=0.8, beta=0.7),
    "onnx_nesterov": plain("onnx.momentum", mode="nesterov"),
    "warm_up_cosine": ({"optimizer": "adamw", "lr": 0.05, "schedule": WARM}, "adamw", {}, warm, {}),
    "one_cycle_adam": (
        {"optimizer": "adam", "lr": 0.05, "schedule": CYCLE},
        "adam",
        {},
        cycle,
        {"momentum": cycled_momentum},
    ),
    "one_cycle_momentum": (
        {"optimizer": "momentum", "lr": 0.05, "schedule": CYCLE},
        "sgd",
        {},
        cycle,
        {"momentum": cycled_momentum},
    ),
    "clip_value": ({"optimizer": "sgd", "lr": 0.05, "clip_value": 0.5}, "sgd", {}, steady(0.05), {"value": 0.5}),
    "clip_norm": ({"optimizer": "adam", "lr": 0.05, "clip_norm": 1.5}, "adam", {}, steady(0.05), {"norm": 1.5}),
    **{
        f"accumulated_{name}": (dict(optimizer=name, lr=0.05, accumulate=3, **o), name, o, steady(0.05), {"every": 3})
        for name, o in {
            "sgd": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
            "adagrad": {"weight_decay": 0.1, "lr_decay": 0.1},
            "rmsprop": {"weight_decay": 0.1, "centered": True, "momentum": 0.5},
            "adam": {"weight_decay": 0.1, "amsgrad": True, "eps": 0.0},
            "adamw": {},
            "lion": {"weight_decay": 0.1},
            "onnx.adam": {"norm_coefficient": 0.1},
        }.items()
    },
    "accumulated_all": (
        {"optimizer": "adamw", "lr": 0.05, "schedule": WARM, "accumulate": 2, "clip_norm": 1.0, "clip_value": 0.4},
        "adamw",
        {},
        warm,
        {"every": 2, "value": 0.4, "norm": 1.0},
    ),
}
WITH_A_SCALAR = ("sgd_decay", "adamw", "accumulated_all")


def shapes_of(case: str) -> dict[str, tuple[int, ...]]:
    return {"W": (3, 4), "b": (4,), **({"s": ()} if case in WITH_A_SCALAR else {})}


def weights_of(case: str, dtype: type = np.float64) -> dict[str, Array]:
    rng = np.random.default_rng(len(case))
    return {f"{case}.{n}": np.asarray(rng.normal(size=s), dtype) for n, s in shapes_of(case).items()}


def expected(case: str, gradients: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    _, name, options, lr, rest = CASES[case]
    wide = [{n: np.asarray(g, np.float64) for n, g in step.items()} for step in gradients]
    weights = {n: w.astype(np.float64) for n, w in weights_of(case, gradients[0][f"{case}.W"].dtype.type).items()}
    return trajectory(name, options, lr, weights, wide, **rest)


Run = tuple[list[dict[str, Array]], list[dict[str, Array]]]


@pytest.fixture(scope="module")
def compiled() -> Run:
    """Gradients and states of all cases, in one step."""
    weights = {n: w for case in CASES for n, w in weights_of(case).items()}
    specs = [(list(weights_of(case)), optimizer_spec(**CASES[case][0])) for case in CASES]
    model, _ = with_optimizers(weights, specs)
    gradients = random_gradients(weights, SPAN)
    step = compiler.compile(model)
    states = []
    for given in gradients:
        step({f"{n}.gradient": g for n, g in given.items()})
        states.append({n: np.array(v) for n, v in step.state.items()})
    return gradients, states


@pytest.mark.parametrize("case", CASES)
def test_formula(case: str, compiled: Run) -> None:
    gradients, states = compiled
    for want, found in zip(expected(case, gradients), states, strict=True):
        for name, w in want.items():
            np.testing.assert_allclose(found[name], w, rtol=1e-12, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("accumulated")])
def test_states_change_with_updates_only(case: str, compiled: Run) -> None:
    gradients, states = compiled
    every = CASES[case][0]["accumulate"]
    kept = [n for n in states[0] if n.startswith(f"{case}.") and not n.endswith(".accumulated")]
    assert len(kept) > 2 or case == "accumulated_sgd"
    for i in range(1, SPAN):
        changed = {n for n in kept if (states[i][n] != states[i - 1][n]).any()}
        if (i + 1) % every:
            assert not changed
        else:
            assert set(weights_of(case)) <= changed
            mean = np.mean([g[f"{case}.W"] for g in gradients[i + 1 - every : i + 1]], axis=0)
            np.testing.assert_allclose(states[i][f"{case}.W.accumulated"], mean, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("opset", [7, 8, 10, 12, 17, 26, 28])
def test_standard_operators_in_float32(opset: int) -> None:
    """All but the nodes of the training domain, run by onnxruntime as one plain graph."""
    lacking = {7: ("lion", "warm", "cycle", "norm", "all"), 8: ("lion",)}  # no Sign; no Max-6 of doubles in onnxruntime
    cases = [c for c in CASES if not any(part in c for part in ("onnx", *lacking.get(opset, ())))]
    weights = {n: w for case in cases for n, w in weights_of(case, np.float32).items()}
    model, _ = with_optimizers(weights, [(list(weights_of(c)), optimizer_spec(**CASES[c][0])) for c in cases], opset)
    step = concatenation(model)
    onnx.checker.check_model(step, full_check=True)
    gradients = random_gradients(weights, SPAN)
    bindings = [(b.key, b.value) for b in model.training_info[0].update_binding]
    states = {t.name: numpy_helper.to_array(t) for t in step.graph.initializer if t.name in dict(bindings)}
    for t in [t for t in step.graph.initializer if t.name in states]:
        step.graph.initializer.remove(t)
        step.graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    session = onnxruntime.InferenceSession(step.SerializeToString(), providers=["CPUExecutionProvider"])
    want = {case: expected(case, gradients) for case in cases}
    for i, given in enumerate(gradients):
        feeds = {**states, **{f"{n}.gradient": g for n, g in given.items()}}
        values = session.run([v for _, v in bindings], feeds)
        states = {key: value for (key, _), value in zip(bindings, values, strict=True)}
        for case in cases:
            # a sign, or a small denominator, magnifies the rounding of single steps
            for n in weights_of(case):
                np.testing.assert_allclose(states[n], want[case][i][n], rtol=2e-4, atol=2e-5, err_msg=f"{n}, step {i}")


# --- in the compiler -----------------------------------------------------------------------------------------
ONE_STEP = {
    "sgd": "SgdStep",
    "momentum": "MomentumStep",
    "nesterov": "MomentumStep",
    "adagrad": "AdagradStep",
    "rmsprop": "RmsPropStep",
    "adam": "AdamStep",
    "adamw": "AdamStep",
    "lion": "LionStep",
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("name", ONE_STEP)
def test_one_step_node_for_all_parameters(name: str, accumulate: int, dtype: type) -> None:
    weights = {f"{layer}.{n}": w for layer in "abc" for n, w in weights_of("x", dtype).items()}
    spec = optimizer_spec(name, weight_decay=0.1, schedule=WARM, accumulate=accumulate)
    graph = program(with_optimizers(weights, [(list(weights), spec)])[0]).step
    tensors = [node.op for node in graph.nodes if any(graph.type(v).size > 1 for v in node.results)]
    assert tensors.count(f"onnxc.{ONE_STEP[name]}") == 1
    assert set(tensors) - {f"onnxc.{ONE_STEP[name]}"} == (set() if accumulate == 1 else {"Mul", "Add", "Where"})


# --- schedules -----------------------------------------------------------------------------------------------
RATES: dict[str, tuple[Any, Callable[[int], float]]] = {
    "constant": ("constant", lambda n: 0.5),
    "warm_up": ({"warmup": 4, "warmup_start": 0.2}, lambda n: 0.5 * min(1, 0.2 + 0.8 * n / 4)),
    "step": ({"name": "step", "step_size": 3, "gamma": 0.5}, lambda n: 0.5 * 0.5 ** (n // 3)),
    "multistep": (
        {"name": "multistep", "milestones": [4, 2, 4]},
        lambda n: 0.5 * 0.1 ** sum(n >= m for m in (2, 4, 4)),
    ),
    "exponential": ({"name": "exponential", "gamma": 0.9}, lambda n: 0.5 * 0.9**n),
    "exponential_warm": (
        {"name": "exponential", "gamma": 0.9, "warmup": 3, "warmup_start": 0.0},
        lambda n: 0.5 * n / 3 if n < 3 else 0.5 * 0.9 ** (n - 3),
    ),
    "linear": ({"name": "linear"}, lambda n: 0.5 * (1 / 3 + 2 / 3 * min(n, 5) / 5)),
    "linear_down": (
        {"name": "linear", "start_factor": 1, "end_factor": 0, "total_iters": 6},
        lambda n: 0.5 * (1 - min(n, 6) / 6),
    ),
    "cosine": ({"name": "cosine", "total_steps": 8, "eta_min": 0.1}, lambda n: cosine(0.5, 0.1, n / 8)),
    "cosine_warm": (
        {"name": "cosine", "total_steps": 8, "warmup": 3},
        lambda n: 0.5 * (0.01 + 0.99 * n / 3) if n < 3 else cosine(0.5, 0, (n - 3) / 5),
    ),
    "one_cycle": (
        {"name": "one_cycle", "total_steps": 10, "div_factor": 10, "final_div_factor": 100, "cycle_momentum": False},
        lambda n: one_cycle(0.5, 10, n, 0.05, 0.0005),
    ),
    "one_cycle_linear": (
        {"name": "one_cycle", "total_steps": 10, "anneal_strategy": "linear", "div_factor": 10, "final_div_factor": 1},
        lambda n: 0.05 + 0.45 * (n / 2 if n < 2 else max(0, 9 - n) / 7),
    ),
    "three_phases": (
        {"name": "one_cycle", "total_steps": 11, "anneal_strategy": "linear", "three_phase": True, "pct_start": 0.4},
        lambda n: float(np.interp(n, [0, 3.4, 6.8, 10], [0.02, 0.5, 0.02, 2e-6])),
    ),
}


@pytest.fixture(scope="module")
def rates() -> list[dict[str, Array]]:
    weights = {name: np.ones(2) for name in RATES}
    model, _ = with_optimizers(weights, [([n], optimizer_spec("sgd", lr=0.5, schedule=RATES[n][0])) for n in RATES])
    step = compiler.compile(model)
    zeros = {f"{n}.gradient": np.zeros(2) for n in RATES}
    return [dict(step(zeros)) for _ in range(13)]


@pytest.mark.parametrize("name", RATES)
def test_schedule(name: str, rates: list[dict[str, Array]]) -> None:
    found = [float(r[f"{name}.rate"]) for r in rates]
    np.testing.assert_allclose(found, [RATES[name][1](n) for n in range(13)], rtol=1e-13, atol=1e-16)


# --- groups, the rate as input, averages ----------------------------------------------------------------------
def test_groups_input_rate_and_average() -> None:
    weights = {f"{case}.{n}": np.full(3, 1.0) for case in ("groups", "input", "average") for n in ("W", "b", "norm.b")}
    names = {case: [n for n in weights if n.startswith(case)] for case in ("groups", "input", "average")}
    groups = [{"match": "*.b", "lr": 0.2}, {"match": ["*W", "*"], "weight_decay": 2.0}]
    specs = [
        optimizer_spec("sgd", lr=0.1, weight_decay=1.0, no_decay="*norm*", groups=groups),
        optimizer_spec({"name": "sgd", "lr": 0.1, "lr_input": True, "groups": [{"match": "*.W", "lr": 0.2}]}),
        optimizer_spec("sgd", lr=0.1, average=0.75),
    ]
    model, added = with_optimizers(weights, list(zip(names.values(), specs, strict=True)))
    step = compiler.compile(model)
    ones = {f"{n}.gradient": np.ones(3) for n in weights}
    step(ones, learning_rate=np.float64(0.3))
    state = {n: float(v.reshape(-1)[0]) for n, v in step.state.items() if v.ndim}
    assert state["groups.norm.b"] == pytest.approx(1 - 0.1 * 1)  # no decay comes first
    assert state["groups.b"] == pytest.approx(1 - 0.2 * (1 + 1))
    assert state["groups.W"] == pytest.approx(1 - 0.1 * (1 + 2))
    assert state["input.W"] == pytest.approx(1 - 0.6)
    assert state["input.b"] == pytest.approx(1 - 0.3)
    assert added[2].averages["average.W"] == "average.W.average"
    assert state["average.W.average"] == pytest.approx(0.9)
    step(ones)
    assert float(step.state["input.b"][0]) == pytest.approx(0.6)  # the default: 0.1
    assert float(step.state["average.W.average"][0]) == pytest.approx(0.75 * 0.9 + 0.25 * 0.8)


def test_norm_and_rate_can_be_fetched() -> None:
    weights = {"W": np.ones(2, np.float32), "b": np.ones(1, np.float32)}
    spec = optimizer_spec("adam", lr=0.5, clip_norm=1.0, schedule={"name": "exponential", "gamma": 0.5})
    step = compiler.compile(with_optimizers(weights, [(list(weights), spec)])[0])
    gradients = {"W.gradient": np.array([2, 3], np.float32), "b.gradient": np.array([6], np.float32)}
    for rate in (0.5, 0.25):
        found = step(gradients, fetch=["gradient_norm", "learning_rate"])
        assert found["gradient_norm"] == pytest.approx(7)
        assert found["learning_rate"] == found["W.rate"] == rate


def test_gradients_that_are_not_finite_reach_parameters_at_an_update_only() -> None:
    weights = {"W": np.ones(3, np.float32)}
    model, _ = with_optimizers(weights, [(["W"], optimizer_spec("adam", accumulate=2, average=0.5))])
    step = compiler.compile(model)
    step({"W.gradient": np.full(3, np.inf, np.float32)})
    assert (step.state["W"] == 1).all()
    assert (step.state["W.average"] == 1).all()
    step({"W.gradient": np.ones(3, np.float32)})
    assert np.isnan(step.state["W"]).all()


def test_steps_are_counted_only_where_something_depends_on_it() -> None:
    weights = {"W": np.ones(2)}
    bound = {}
    for name, given in {"sgd": {}, "adam": {"optimizer": "adam"}, "k": {"accumulate": 2, "optimizer": "lion"}}.items():
        model, _ = with_optimizers(weights, [(["W"], optimizer_spec(**{"optimizer": "sgd", **given}))])
        bound[name] = {binding.key for binding in model.training_info[0].update_binding}
    assert bound["sgd"] == {"W"}
    assert bound["adam"] == {"W", "W.exp_avg", "W.exp_avg_sq", "iteration"}
    assert bound["k"] == {"W", "W.exp_avg", "W.accumulated", "iteration"}


# --- wrong uses ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "adma"}, r"no optimizer 'adma' \(did you mean 'adam'\?\): there are sgd, "),
        ({"optimizer": "sgd", "betas": (0.9, 0.9)}, "optimizer sgd has no option 'betas'.*it has lr, momentum"),
        ({"acumulate": 2}, r"no option 'acumulate' \(did you mean 'accumulate'\?\): it has lr, .*, clip_norm, average"),
        ({"groups": [{"match": "*", "acumulate": 2}]}, "no option 'acumulate': it has lr, .*, amsgrad$"),
        ({"optimizer": "adam", "betas": (0.9, 1.0)}, "betas must be numbers from 0 to less than 1, not 1.0"),
        ({"optimizer": "adam", "betas": 0.9}, "betas must be a pair of numbers, not 0.9"),
        ({"optimizer": "adam", "lr": -1}, "lr must be a number from 0 on, not -1"),
        ({"optimizer": "adam", "lr": "1"}, "lr must be a number from 0 on, not '1'"),
        ({"optimizer": "adam", "lr": math.nan}, "lr must be"),
        ({"optimizer": "sgd", "nesterov": True}, "nesterov needs a momentum and no dampening"),
        ({"optimizer": "sgd", "nesterov": 1}, "nesterov must be True or False, not 1"),
        ({"optimizer": "onnx.adam"}, "onnx.adam has no default rate: give lr"),
        (
            {"optimizer": "onnx.momentum", "lr": 1, "mode": "heavy"},
            "mode must be one of standard, nesterov, not 'heavy'",
        ),
        ({"optimizer": {"lr": 1}}, "an optimizer is a name, or a mapping with its name and options, not {'lr': 1}"),
        ({"optimizer": {"name": "sgd", "optimizer": "sgd"}}, "its mapping has its name as 'name'"),
        ({"optimizer": optimizer_spec("sgd"), "lr": 1.0}, "lr: given beside a finished OptimizerSpec"),
        ({"clip_norm": 0}, "clip_norm must be a positive number, not 0"),
        ({"accumulate": 0}, r"accumulate must be an integer from 1 to \d+, not 0"),
        ({"average": 1}, "average must be a decay from 0 to less than 1, not 1"),
        ({"groups": [{"lr": 1}]}, "a parameter group is a mapping of match and options"),
        ({"groups": [{"match": [], "lr": 1}]}, r"match must be a glob pattern of names, or a list of such, not \[\]"),
        ({"no_decay": 5}, "no_decay must be a glob pattern of names, or a list of such, not 5"),
        ({"lr_input": 5}, "lr_input must be True, False or the name of an input, not 5"),
        ({"groups": [{"match": "*", "rate": 1}]}, "adam has no option 'rate'"),
        ({"schedule": "cosin"}, r"no schedule 'cosin' \(did you mean 'cosine'\?\)"),
        ({"schedule": "cosine"}, "schedule cosine needs its total_steps"),
        ({"schedule": {"name": "cosine", "steps": 3}}, "schedule cosine has no option 'steps'"),
        (
            {"schedule": {"name": "cosine", "total_steps": 3.5}},
            r"total_steps must be an integer from 0 to \d+, not 3.5",
        ),
        ({"schedule": {"name": "cosine", "total_steps": 3, "warmup": 3}}, "total_steps must be more than those of"),
    ],
)
def test_wrong_options(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        optimizer_spec(**given)


@pytest.mark.parametrize(
    ("given", "opset", "error", "message"),
    [
        ({"groups": [{"match": "c*"}]}, 20, InputError, "no trained parameter matches 'c.': there are W, b"),
        ({"optimizer": "lion"}, 8, UnsupportedError, "Lion needs the operator Sign, which ai.onnx has from version 9"),
        ({"optimizer": "onnx.adam", "lr": 1, "accumulate": 2}, 8, UnsupportedError, "needs the operator Where"),
        ({"optimizer": "adagrad", "schedule": {**CYCLE, "cycle_momentum": True}}, 20, InputError, "has no momentum"),
    ],
)
def test_what_a_model_does_not_allow(given: dict[str, Any], opset: int, error: type[Exception], message: str) -> None:
    weights = {"W": np.ones((2, 2)), "b": np.ones(2)}
    with pytest.raises(error, match=message):
        with_optimizers(weights, [(list(weights), optimizer_spec(**given))], opset)


def test_half_precision_is_refused() -> None:
    weights = {"W": np.ones(2, np.float16), "b": np.ones(2, np.float16)}
    with pytest.raises(UnsupportedError, match=r"parameter of type float16.*in W, make a model with float32") as e:
        with_optimizers(weights, [(list(weights), optimizer_spec("adam"))])
    assert [p.where for p in e.value.problems] == ["W", "b"]
