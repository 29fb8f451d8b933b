"""`make_training_model`: an inference model, a loss and an optimizer become a training model of the standard."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from onnx import GraphProto, ModelProto, helper
from onnx.inliner import inline_local_functions

from compiler.errors import InputError, checked_seed, did_you_mean, shown
from compiler.frontend.attempts import accepted
from compiler.frontend.averages import record_averages
from compiler.frontend.files import Model
from compiler.frontend.making.activations import read_output
from compiler.frontend.making.arguments import checked_number, checked_text
from compiler.frontend.making.batch import with_symbolic_batch
from compiler.frontend.making.class_losses import class_loss
from compiler.frontend.making.ctc import ctc
from compiler.frontend.making.emit import DOMAIN, Algorithm
from compiler.frontend.making.facts import Facts
from compiler.frontend.making.fresh import add_initialization
from compiler.frontend.making.loss_options import CLASSES, AnyLoss, Loss, as_losses
from compiler.frontend.making.losses import EMITTERS, FLOATS, Emit, Read
from compiler.frontend.making.made import check_made
from compiler.frontend.making.merged import merged
from compiler.frontend.making.modes import (
    notes_on_modes,
    notes_on_single_samples,
    statistics,
    switched,
    to_inference,
    training_copy,
)
from compiler.frontend.making.optimizer_spec import DEFAULTS, OptimizerSpec, optimizer_spec
from compiler.frontend.making.optimizers import Parameter, add_optimizer
from compiler.frontend.making.outputs import only_outputs
from compiler.frontend.making.own_loss import add_own_loss, own_inputs
from compiler.frontend.making.own_statistics import separate_statistics
from compiler.frontend.making.select import (
    DENSE,
    Candidate,
    Patterns,
    candidates,
    choose,
    fillers,
    filling,
    lift,
    listed,
    sparse_weights,
)
from compiler.frontend.making.targets import Targets
from compiler.frontend.names import ai_onnx_version
from compiler.frontend.source import read
from compiler.frontend.trained import trained_model

OLDEST_OPSET = 7
OLDEST_IR = 7

_EMITTERS: dict[str, Emit] = {**EMITTERS, **dict.fromkeys(CLASSES, class_loss), "ctc": ctc}


def make_training_model(
    model: Model,
    *,
    loss: AnyLoss | Mapping[str, AnyLoss] = "cross_entropy",
    optimizer: str | Mapping[str, Any] | OptimizerSpec = "adam",
    output: str | None = None,
    outputs: Sequence[str] | None = None,
    target: str | Mapping[str, str] | None = None,
    loss_weights: Mapping[str, float] | None = None,
    train: Patterns | None = None,
    freeze: Patterns | None = None,
    batch_norm: str = "auto",
    batch: str | None = "N",
    initialize: str | None = None,
    seed: int | None = None,
    note: Callable[[str], object] | None = None,
    **optimizer_options: Any,
) -> ModelProto:
    """A training model of the ONNX standard, whose inference graph is `model`.

    model: a path, the bytes of a file, or a ModelProto, which is not changed. loss: a name or `compiler.Loss`, a
    FunctionProto or model of your own (a path, bytes or a ModelProto), or several by output. optimizer: a name or a
    mapping of it and its options, which may also be given here: lr (or learning_rate), weight_decay, schedule,
    clip_norm, ... (docs/optimizers.md). output: what the loss is on, by default the first of floating point. outputs:
    those that the model keeps, with what they are computed from; by default all. target: name of the input with the
    targets, by default `label` for class numbers, else `target`; with several losses `OUTPUT.label`, `OUTPUT.target`.
    It may be an input that the model has, as for an autoencoder. loss_weights: by output, 1 by default.

    train, freeze: glob patterns of names: only these train, these do not. By default all weights train. batch_norm:
    "auto": batch statistics where its scale or bias trains; "train": everywhere; "frozen": nowhere. batch: the symbol
    that a batch fixed at 1 becomes; None leaves it. initialize: how an initialization graph draws fresh weights: None
    for no such graph, "kaiming", "xavier", "normal", "zeros", ... seed: of these; by default that of the run.
    note: is called with each text on what is allowed, but may not be meant, as `print`.

    The step takes the model's inputs and the targets; its outputs are those of the model and `loss`. The gradient of W
    is `W.gradient`, its next value `W.next`. InputError: arguments that do not fit the model. CompileError: a model
    that cannot be trained.
    """
    if batch is not None and not (isinstance(batch, str) and batch.isidentifier()):
        raise InputError(
            f"batch must be a name for the number of samples, as N (batch=None leaves it), not {shown(batch)}"
        )
    seed = None if seed is None else checked_seed(seed)
    if note is not None and not callable(note):
        raise InputError(f"note must be a function that takes a text, as print, not {shown(note)}")
    if output is not None:
        checked_text("output", output, "the name of an output")
    work = _prepared(model if outputs is None else only_outputs(model, outputs), batch)
    facts = Facts(work)
    floating = [v for v in facts.outputs if facts.elem_type(v) in FLOATS]
    first = output if isinstance(loss, Mapping) or not floating else output or floating[0]
    losses = as_losses(loss, facts.outputs, first, target)
    weights = _loss_weights(loss_weights, losses)
    options = _optimizer(optimizer, optimizer_options)
    reads = {name: read_output(facts, chosen, name) for name, chosen in losses.items()}
    compared = {c.other: read_output(facts, Loss("mse"), c.other) for c in losses.values() if c.other is not None}
    own = {v for name, c in losses.items() if not c.name for v in own_inputs(c, name, facts.outputs)}
    sources = [*(r.value for r in (*reads.values(), *compared.values())), *own]
    known = candidates(facts)
    filled = fillers(facts, known) if train is None else []
    parameters = choose(facts, known, sources, train, freeze)
    changed = switched(facts, sources, {p.name for p in parameters}, batch_norm)
    copies = separate_statistics(work, facts, known, changed, {p.name for p in parameters})
    lift(work, [*parameters, *(known[v] for v in statistics(changed, known.keys() | copies) if v not in copies)])

    facts = Facts(work)
    dtypes = {r.elem_type for r in reads.values()}
    if len(dtypes) > 1:
        raise InputError("the losses are on outputs of different types: convert the model to one of them")
    a = Algorithm(work, dtypes.pop())
    with a.scope("forward"):
        names = training_copy(a, facts, sources, changed)
    total = _losses(a, facts, losses, weights, reads, names)
    used = facts.upstream(sources).union(*(node.input for node in a.nodes))  # a target may be an input of the model
    given = [v for v in facts.inputs if v in used]
    if options.accumulate > 1:  # gradients are then added up as they are
        with a.scope("gradient"):
            total = a.node("Mul", [total, a.const(1 / options.accumulate, "part")], "loss_part")
    gradients = _gradient(a, parameters, [*given, *a.inputs], total)
    updated = [Parameter(p.name, p.shape, p.elem_type, p.read()) for p in parameters]
    added = add_optimizer(a, updated, gradients, options)
    if any(added.rate in node.output for node in a.nodes):
        a.output(added.rate)
    _finish(work, a, facts, parameters, initialize, seed)
    record_averages(work, added.averages)
    check_made(work, losses)
    if note is not None:
        frozen = () if freeze is None else listed("freeze", freeze)
        missed = sparse_weights(facts, frozen) if train is None else []
        taken = "the name {!r} is taken in the model: what is usually called so is {!r} here"
        texts = [taken.format(*names) for names in a.renamed]
        reached = facts.upstream(sources)
        texts += [f"{name!r} does not train: {DENSE}" for name in missed if name in reached]
        unasked = [n for n in filled if n in reached and not any(fnmatchcase(n, pattern) for pattern in frozen)]
        if unasked:
            texts.append(filling(unasked))
        texts += notes_on_modes(facts, sources, {p.name for p in parameters}, batch_norm)
        texts += notes_on_single_samples(facts, changed)
        for text in [*texts, *merged(work)]:
            note(text)
    return work


def _prepared(model: Model, batch: str | None) -> ModelProto:
    """A copy of the model that stands alone, with inference forms, and a batch that is open if it is to be."""
    source = accepted(*read(model))
    if source.model.training_info:
        raise InputError("the model has training_info already: give the inference model, as step.export writes it")
    work = trained_model(source, {})
    if work.functions:
        work = inline_local_functions(work)
    if (opset := ai_onnx_version(work)) < OLDEST_OPSET:
        raise InputError(
            f"the model is written for opset {opset}: training needs {OLDEST_OPSET} or more, which "
            "onnx.version_converter.convert_version(model, 13) gives it"
        )
    if work.ir_version < 4:  # there, every initializer had to be an input
        _drop_inputs(work, {t.name for t in work.graph.initializer})
    work.ir_version = max(work.ir_version, OLDEST_IR)
    to_inference(work)
    return work if batch is None else with_symbolic_batch(work, batch)


def _drop_inputs(model: ModelProto, names: Set[str]) -> None:
    kept = [v for v in model.graph.input if v.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _loss_weights(given: Mapping[str, float] | None, losses: Mapping[str, Loss]) -> dict[str, float]:
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"loss_weights must be a mapping from outputs to numbers, not {shown(given)}")
    weights = dict.fromkeys(losses, 1.0)
    for name, value in (given or {}).items():
        if name not in losses:
            near = did_you_mean(name, losses) or f": there are {', '.join(map(repr, losses))}"
            raise InputError(f"loss_weights: output {shown(name)} has no loss{near}")
        weights[name] = checked_number(f"loss_weights: the weight of {name!r}", value)
    if not any(weights.values()):
        raise InputError("loss_weights: all are 0, so nothing would train: give one that is not")
    return weights


def _optimizer(optimizer: str | Mapping[str, Any] | OptimizerSpec, options: Mapping[str, Any]) -> OptimizerSpec:
    """The optimizer with its options, `learning_rate` being another word for lr. InputError."""
    renamed = _with_lr(options)
    if isinstance(optimizer, Mapping):
        optimizer = _with_lr(optimizer)
    if isinstance(optimizer, str) and optimizer.lower() in DEFAULTS:
        allowed = {*DEFAULTS[optimizer.lower()], *inspect.signature(optimizer_spec).parameters}
        own = inspect.signature(make_training_model).parameters.values()
        arguments = [p.name for p in own if p.kind is not p.VAR_KEYWORD]
        for name in renamed:
            if name not in allowed and (near := did_you_mean(name, arguments)):
                raise InputError(f"make_training_model has no argument {name!r}{near}")
    return optimizer_spec(optimizer, **renamed)


def _with_lr(options: Mapping[str, Any]) -> dict[str, Any]:
    if "lr" in options and "learning_rate" in options:
        raise InputError("lr and learning_rate are the same option: leave out one")
    return {"lr" if name == "learning_rate" else name: value for name, value in options.items()}


def _losses(
    a: Algorithm,
    facts: Facts,
    losses: Mapping[str, Loss],
    weights: Mapping[str, float],
    reads: Mapping[str, Read],
    copies: Mapping[str, str],
) -> str:
    """Nodes and inputs of all losses, and their outputs. copies: value of inference -> of training. The sum's name."""
    values = {v: copies.get(v, v) for v in facts.producer.keys() | facts.types.keys()}
    outputs = {v: values[v] for v in facts.outputs if v in values}
    several = len(losses) > 1
    total = a.public("loss") if several or set(weights.values()) != {1.0} else ""
    targets = Targets(a, facts)
    if total:
        a.output(total)  # the first one: what the loss is, should an output of the model be called that
    with a.scope("loss"):
        parts = {}
        for name, loss in losses.items():
            read = replace(reads[name], value=values[reads[name].value], prefix=f"{name}." if several else "")
            if not loss.name:
                parts[name] = add_own_loss(a, facts, loss, read, outputs, targets)
                continue
            other = None if loss.other is None else values[loss.other]
            parts[name] = _EMITTERS[loss.name](a, loss, read, targets.of(loss, read), other)
        if not total:
            (only,) = parts.values()
            a.output(only)
            if only != "loss":
                a.renamed.append(("loss", only))
            return only
        scaled = []
        for name, part in parts.items():
            if several:
                reported = a.public(f"{name}.loss")
                a.add(helper.make_node("Identity", [part], [reported], reported))
                part = reported
                a.output(part)
            weight = weights[name]
            scaled.append(part if weight == 1 else a.node("Mul", [part, a.const(weight, "loss_weight")], "weighted"))
        a.add(helper.make_node("Sum" if several else "Identity", scaled, [total], total))
    return total


def _gradient(a: Algorithm, parameters: Sequence[Candidate], given: Sequence[str], loss: str) -> dict[str, str]:
    names = [p.name for p in parameters]
    with a.scope("gradient"):
        outputs = a.nodes_of(
            "Gradient",
            [*names, *given],
            [f"{name}.gradient" for name in names],
            DOMAIN,
            xs=names,
            y=loss,
            **({"zs": list(given)} if given else {}),
        )
    for p, gradient in zip(parameters, outputs, strict=True):
        a.describe(gradient, p.elem_type, p.shape)
        if gradient != f"{p.name}.gradient":
            a.renamed.append((f"{p.name}.gradient", gradient))
    return dict(zip(names, outputs, strict=True))


def _finish(
    work: ModelProto,
    a: Algorithm,
    facts: Facts,
    parameters: Sequence[Candidate],
    initialize: str | None,
    seed: int | None,
) -> None:
    """Put the algorithm into the model, with an initialization if there is to be one."""
    initialization: GraphProto | None = None
    bindings: Sequence[tuple[str, str]] = ()
    if initialize is not None:
        trained = {p.name for p in parameters}
        states = {
            v: t for v, t in {**facts.initializers, **a.initializers}.items() if v in a.bound and v not in trained
        }
        initialization, bindings = add_initialization(facts, parameters, states, initialize, seed)
    elif seed is not None:
        raise InputError("seed is of the initialization: give initialize='kaiming' or another")
    _drop_inputs(work, set(a.bound))
    if all(entry.domain != DOMAIN for entry in work.opset_import):
        work.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    work.training_info.append(a.training_info(initialization, bindings))
