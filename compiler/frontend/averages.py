"""Which state is the running average of which variable: said in the metadata of a training model.

    onnxc.averages   JSON object: initializer of the inference graph -> initializer that is its average

The standard has no place for it; other tools pass metadata over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from onnx import ModelProto

from compiler.frontend.report import Report

AVERAGES = "onnxc.averages"
"""Key of the metadata."""


def record_averages(model: ModelProto, averages: Mapping[str, str]) -> None:
    """Write the relation into a model, in place of what it says."""
    forget_averages(model)
    if averages:
        model.metadata_props.add(key=AVERAGES, value=json.dumps(dict(averages)))


def forget_averages(model: ModelProto) -> None:
    """Remove the relation: from a model that has no averages, as an inference model."""
    kept = [p for p in model.metadata_props if p.key != AVERAGES]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)


def read_averages(model: ModelProto, report: Report) -> dict[str, str]:
    """What a model says. An entry that cannot be is reported, and left out."""
    text = next((p.value for p in model.metadata_props if p.key == AVERAGES), "{}")
    where, remedy = f"metadata {AVERAGES!r}", "remove the entry, or make the model again"
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict) or not all(isinstance(v, str) for v in said.values()):
        report.malformed(f"{text[:80]!r} is no JSON object of names", where, remedy, stop=False)
        return {}
    weights = {t.name: (t.data_type, *t.dims) for t in model.graph.initializer}
    known = {t.name: (t.data_type, *t.dims) for info in model.training_info for t in info.algorithm.initializer}
    bound = {b.key for info in model.training_info for b in info.update_binding}
    good = {}
    for name, state in said.items():
        if name not in weights:
            what = f"{name!r} has an average, but is no initializer of the inference graph"
        elif state not in bound:
            what = f"{state!r} is said to be the average of {name!r}, but no update binding changes it"
        elif {**known, **weights}.get(state) != weights[name]:
            what = f"{state!r} is said to be the average of {name!r}, but has another type"
        else:
            good[name] = state
            continue
        report.malformed(what, where, remedy, stop=False)
    return good
