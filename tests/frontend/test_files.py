"""What is handed over as a model: good files, and everything else that a user may point at."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.errors import CompileError, ModelError
from compiler.frontend import check, load
from compiler.ir.types import AnyArray
from tests.frontend.small import linear


def problem(model: object) -> str:
    with pytest.raises(CompileError) as e:
        load(model)  # type: ignore[arg-type]
    assert len(e.value.problems) == 1, e.value
    return str(e.value)


def test_path_bytes_and_message(tmp_path: Path) -> None:
    path = tmp_path / "no extension"
    onnx.save(linear(), str(path))
    for model in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), linear()):
        assert load(model).variables == ("w", "n")  # type: ignore[arg-type]


def test_no_file(tmp_path: Path) -> None:
    path = tmp_path / "none.onnx"
    assert problem(path) == f"there is no file {str(path)!r}, check the path"
    assert "cannot be read" in problem("a\0b")


def test_a_folder(tmp_path: Path) -> None:
    assert "this is a folder" in problem(tmp_path)


def test_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.symlink_to(path)
    assert "cannot be read" in problem(path)


def test_empty(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.touch()
    assert "there are no bytes" in problem(path)
    assert "there are no bytes" in problem(b"")


def test_truncated(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    data = linear().SerializeToString()
    path.write_bytes(data[: len(data) - 7])
    assert "its end is missing" in problem(path)


def test_every_truncation_is_an_error_or_a_model() -> None:
    """Cut between fields, a file parses: then it must be refused for what is missing, or work."""
    data = linear().SerializeToString()
    for n in range(0, len(data), 3):
        with suppress(CompileError):
            load(data[:n])


@pytest.mark.parametrize(
    "text",
    [
        "import torch\n" * 9,
        '{"irVersion": "8"}',
        "ir_version: 8\ngraph {\n}",
        "<ir_version: 8>\ng (float[2] x) => () {}",
        "äöü" * 5000,
    ],
)
def test_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_text(text)
    assert "this is text, not a model in ONNX's binary format" in problem(path)
    assert "onnx.save(onnx.load(path)" in problem(path)


def test_other_protobuf() -> None:
    assert "there is no graph in it" in problem(onnx.ModelProto(ir_version=8).SerializeToString())
    assert "there is no graph in it" in problem(onnx.ModelProto(ir_version=8))


def test_not_a_model() -> None:
    with pytest.raises(TypeError, match=r"a path, bytes or an onnx\.ModelProto, not int"):
        load(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_never_crash(seed: int) -> None:
    random = np.random.default_rng(seed)
    data = bytearray(linear().SerializeToString())
    for _ in range(3):
        data[random.integers(len(data))] = random.integers(256)
    with suppress(CompileError):
        source = load(bytes(data))
        source.program(dict.fromkeys(source.symbols, 2))


def test_versions() -> None:
    for version, words in ((99, "IR version 99; the installed onnx reads up to"), (2, "the file is of IR version 2")):
        model = linear()
        del model.training_info[:]
        model.ir_version = version
        assert words in problem(model)
    model = linear()
    del model.training_info[:]
    model.ClearField("ir_version")
    assert "the IR version is missing" in problem(model)
    for version in (0, 29, 1000):
        model = linear()
        model.opset_import[0].version = version
        assert f"ai.onnx version {version}" in problem(model)


def test_operators_of_opsets_that_are_too_old_are_refused_one_by_one() -> None:
    model = linear()
    model.opset_import[0].version = 5
    with pytest.raises(CompileError) as e:
        load(model)
    assert len(e.value.problems) > 1
    assert all("of ai.onnx version 5 is too old" in p.what for p in e.value.problems), e.value


def test_operators_that_never_changed_are_read_from_any_opset() -> None:
    graph = helper.make_graph(
        [helper.make_node("Not", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.BOOL, [2])],
        [helper.make_tensor_value_info("y", TensorProto.BOOL, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 1)], ir_version=3)
    assert [n.op for n in load(model).program().step.nodes] == ["Not"]


# --- external data ---------------------------------------------------------------------------------------
def external(name: str, array: AnyArray, **entries: str) -> TensorProto:
    t = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    t.data_location = TensorProto.EXTERNAL
    t.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in entries.items())
    return t


W = np.arange(3, dtype=np.float32).reshape(3, 1) + 5


def with_external(folder: Path, data: bytes | None = None, **entries: str) -> Path:
    """The linear model with its weight in `w.bin`."""
    model = linear()
    model.graph.initializer[0].CopyFrom(external("w", W, **({"location": "w.bin"} | entries)))
    folder.mkdir(exist_ok=True)
    if data is not None:
        (folder / "w.bin").write_bytes(data)
    onnx.save(model, str(folder / "m.onnx"))
    return folder / "m.onnx"


def test_external_data_is_mapped(tmp_path: Path) -> None:
    source = load(with_external(tmp_path, W.tobytes()))
    tensor = source.initializers["w"].tensor
    np.testing.assert_array_equal(tensor.array, W)
    assert not tensor.array.flags.writeable
    base: object = tensor.array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    np.testing.assert_array_equal(source.program({"N": 1}).step.states["w"].array, W)


def test_offset_and_length(tmp_path: Path) -> None:
    path = with_external(tmp_path, b"12345" + W.tobytes() + b"more", offset="5", length="12")
    np.testing.assert_array_equal(load(path).initializers["w"].tensor.array, W)


def test_written_by_onnx(tmp_path: Path) -> None:
    model = linear()
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="data", size_threshold=0)
    np.testing.assert_array_equal(load(tmp_path / "m.onnx").initializers["w"].tensor.array.ravel(), [1, 2, 3])


def test_in_subfolder_and_by_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(W.tobytes())
    path = with_external(tmp_path, location="sub/w.bin")
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(load(path.name).initializers["w"].tensor.array, W)


def test_in_training_info_and_nested_graphs(tmp_path: Path) -> None:
    model = linear()
    model.graph.node.append(
        helper.make_node(
            "If",
            ["c"],
            ["z"],
            then_branch=helper.make_graph(
                [], "a", [], [onnx.ValueInfoProto(name="v")], [external("v", W, location="w.bin")]
            ),
            else_branch=helper.make_graph(
                [helper.make_node("Constant", [], ["u"], value=external("u", W, location="w.bin"))],
                "b",
                [],
                [onnx.ValueInfoProto(name="u")],
            ),
        )
    )
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    algorithm = model.training_info[0].algorithm
    rate = np.array(0.5, np.float32)
    algorithm.initializer[0].CopyFrom(external("rate", rate, location="rate.bin"))
    start = numpy_helper.from_array(np.array(7))
    model.training_info[0].initialization.node[1].attribute[0].CopyFrom(
        helper.make_attribute("value", external("", numpy_helper.to_array(start), location="n.bin"))
    )
    model.training_info[0].initialization.node[1].attribute[0].name = "value"
    (tmp_path / "rate.bin").write_bytes(rate.tobytes())
    (tmp_path / "n.bin").write_bytes(np.array(7).tobytes())
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    program = load(tmp_path / "m.onnx").program({"N": 2})
    constant = program.step.constant("rate")
    assert constant is not None
    assert constant == 0.5
    assert program.initialize is not None
    n0 = program.initialize.constant("n0")
    assert n0 is not None
    assert n0 == 7
    (branch,) = [n for n in program.step.nodes if n.op == "If"]
    for body in branch.bodies.values():
        (value,) = body.consts.values()
        np.testing.assert_array_equal(value.array, W)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"location": ""}, "the location is missing"),
        ({"location": "/etc/passwd"}, "not a relative path inside the model's folder"),
        ({"location": "../w.bin"}, "not a relative path inside the model's folder"),
        ({"location": "sub/../../w.bin"}, "not a relative path inside the model's folder"),
        ({"location": "sub\\..\\w.bin"}, "not a relative path inside the model's folder"),
        ({"location": "a\0b"}, "not a relative path inside the model's folder"),
        ({"location": "none.bin"}, "'none.bin' cannot be read"),
        ({"location": "."}, "Is a directory"),
        ({"offset": "-4"}, "offset '-4' is no number of bytes"),
        ({"offset": "1e3"}, "offset '1e3' is no number of bytes"),
        ({"offset": "9" * 40}, "is no number of bytes"),
        ({"offset": "4"}, "needs 12 bytes, not 8"),
        ({"offset": "400"}, "are not in 'w.bin', which has 12"),
        ({"length": "13"}, "are not in 'w.bin', which has 12"),
        ({"length": "8"}, "needs 12 bytes, not 8"),
        ({"offset": "4", "length": "12"}, "are not in 'w.bin', which has 12"),
    ],
)
def test_bad_entries(tmp_path: Path, entries: dict[str, str], words: str) -> None:
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    found = problem(with_external(tmp_path / "model", W.tobytes(), **entries))
    assert words in found
    assert "'w'" in found


def test_links_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    path = with_external(tmp_path / "model")
    (tmp_path / "model" / "w.bin").symlink_to(tmp_path / "w.bin")
    assert "leads outside of the model's folder" in problem(path)
    path = with_external(tmp_path / "model", location="up/w.bin")
    (tmp_path / "model" / "up").symlink_to(tmp_path)
    assert "leads outside of the model's folder" in problem(path)


def test_a_model_that_is_a_link_finds_its_data(tmp_path: Path) -> None:
    path = with_external(tmp_path / "model", W.tobytes())
    (tmp_path / "link.onnx").symlink_to(path)
    np.testing.assert_array_equal(load(tmp_path / "link.onnx").initializers["w"].tensor.array, W)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    path = with_external(tmp_path)
    os.mkfifo(tmp_path / "w.bin")
    assert "is no regular file" in problem(path)


def test_huge_dims_take_no_memory(tmp_path: Path) -> None:
    path = with_external(tmp_path, W.tobytes())
    model = onnx.load(str(path), load_external_data=False)
    model.graph.initializer[0].dims[:] = [2**20, 2**19]
    path.write_bytes(model.SerializeToString())
    assert "needs 2199023255552 bytes, not 12" in problem(path)
    model.graph.initializer[0].dims[:] = [2**40, 2**40]
    path.write_bytes(model.SerializeToString())
    assert "a tensor has the dims" in problem(path)


def test_no_folder() -> None:
    model = linear()
    for t in (model.graph.initializer[0], model.training_info[0].algorithm.initializer[0]):
        t.CopyFrom(external(t.name, numpy_helper.to_array(t), location="w.bin"))
    for given in (model, model.SerializeToString()):
        found = problem(given)
        assert "2 tensors have their data in other files" in found
        assert "pass the model's path" in found


# --- data in the file ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"raw_data": b"1234"}, "a tensor f32[3,1] needs 12 bytes, but its data has 4"),
        ({"raw_data": b""}, "a tensor f32[3,1] needs 12 bytes, but its data has 0"),
        ({"float_data": [1.0, 2.0]}, "a tensor f32[3,1] needs 3 elements, but its data has 2"),
        ({}, "a tensor f32[3,1] needs 3 elements, but its data has 0"),
        ({"float_data": [1.0, 2.0, 3.0], "dims": [3, -1]}, "a tensor has the dims [3, -1]"),
        ({"int32_data": [1, 2, 3]}, "a tensor f32[3,1] needs 3 elements, but its data has 0"),
        ({"data_type": 0}, "a tensor has no element type"),
        ({"data_type": 77}, "tensors of 77 are not supported"),
        ({"data_type": TensorProto.STRING, "string_data": [b"a", b"b", b"c"]}, "tensors of STRING are not supported"),
        ({"data_type": TensorProto.COMPLEX64}, "tensors of COMPLEX64 are not supported"),
        ({"segment": TensorProto.Segment(begin=0, end=1)}, "a tensor in segments is not supported"),
    ],
)
def test_malformed_tensors(change: dict[str, object], words: str) -> None:
    model = linear()
    fields = {"name": "w", "data_type": TensorProto.FLOAT, "dims": [3, 1]} | change
    model.graph.initializer[0].CopyFrom(TensorProto(**fields))  # type: ignore[arg-type]
    found = problem(model)
    assert words in found
    assert "initializer 'w'" in found
    assert [str(p) for p in check(model)] == [found]


def test_every_element_type() -> None:
    from compiler.ir.types import DTYPES, numpy_dtype

    for dtype in DTYPES:
        array = np.ones((3, 1)).astype(numpy_dtype(dtype))
        model = linear()
        model.graph.initializer.append(numpy_helper.from_array(array, "k"))
        elem = model.graph.initializer[-1].data_type
        typed = helper.make_tensor("k2", elem, (3, 1), array.ravel().astype(float).tolist())
        model.graph.initializer.append(typed)
        source = load(model)
        for name in ("k", "k2"):
            np.testing.assert_array_equal(source.initializers[name].tensor.array, array)


@pytest.mark.parametrize("flat", [True, False])
def test_sparse_initializer(flat: bool) -> None:
    indices = np.array([1, 5]) if flat else np.array([[0, 1], [1, 2]])
    model = linear()
    model.graph.sparse_initializer.append(
        onnx.SparseTensorProto(
            values=numpy_helper.from_array(np.array([7, 8], np.float32), "k"),
            indices=numpy_helper.from_array(indices.astype(np.int64), "k_indices"),
            dims=[2, 3],
        )
    )
    np.testing.assert_array_equal(load(model).initializers["k"].tensor.array, [[0, 7, 0], [0, 0, 8]])
    model.graph.sparse_initializer[0].dims[1] = 2
    with pytest.raises(ModelError, match="indices outside of its dims"):
        load(model).program({"N": 1})
    model.graph.sparse_initializer[0].indices.dims[0] = 3
    assert "sparse initializer 'k'" in problem(model)


def test_weights_are_read_when_they_are_needed(tmp_path: Path) -> None:
    path = with_external(tmp_path, W.tobytes())
    weight = load(path).initializers["w"]
    assert str(weight.type) == "f32[3,1]"
    assert "tensor" not in vars(weight)
