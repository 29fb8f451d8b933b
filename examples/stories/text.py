"""A small transformer that writes like Python's manual, character by character.

`python -m examples.stories.text [FOLDER]` trains it on the help texts that Python ships (`help("topics")`), compares
it with the frequencies of pairs of characters, and lets it write.
"""

from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import onnx
import onnxruntime

import compiler
from examples.stories.common import folder, in_onnxruntime, network

SYMBOLS = "\n" + "".join(map(chr, range(32, 127)))  # all other characters become "?"
CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2


def transformer() -> onnx.ModelProto:
    """The characters so far to the scores of the next one, at each place. Attention is that of opset 23.

    Normalization comes before each part (Xiong et al., 2020), and what a part computes is added to its input.
    """
    weights, nodes = [], []
    for i in range(LAYERS):
        weights.append(f"""
         float[{WIDTH}] "{i}.norm1.scale", float[{WIDTH}] "{i}.norm1.bias",
         float[{WIDTH}, {3 * WIDTH}] "{i}.qkv.weight", float[{3 * WIDTH}] "{i}.qkv.bias",
         float[{WIDTH}, {WIDTH}] "{i}.joined.weight", float[{WIDTH}] "{i}.joined.bias",
         float[{WIDTH}] "{i}.norm2.scale", float[{WIDTH}] "{i}.norm2.bias",
         float[{WIDTH}, {4 * WIDTH}] "{i}.wide.weight", float[{4 * WIDTH}] "{i}.wide.bias",
         float[{4 * WIDTH}, {WIDTH}] "{i}.narrow.weight", float[{WIDTH}] "{i}.narrow.bias",""")
        nodes.append(f"""
            norm1_{i} = LayerNormalization (stream_{i}, "{i}.norm1.scale", "{i}.norm1.bias")
            products_{i} = MatMul (norm1_{i}, "{i}.qkv.weight")
            qkv_{i} = Add (products_{i}, "{i}.qkv.bias")
            query_{i}, key_{i}, value_{i} = Split <axis: int = 2, num_outputs: int = 3> (qkv_{i})
            heads_{i} = Attention <is_causal: int = 1, q_num_heads: int = {HEADS}, kv_num_heads: int = {HEADS}>
                        (query_{i}, key_{i}, value_{i})
            mixed_{i} = MatMul (heads_{i}, "{i}.joined.weight")
            joined_{i} = Add (mixed_{i}, "{i}.joined.bias")
            attended_{i} = Add (stream_{i}, joined_{i})
            norm2_{i} = LayerNormalization (attended_{i}, "{i}.norm2.scale", "{i}.norm2.bias")
            widened_{i} = MatMul (norm2_{i}, "{i}.wide.weight")
            wide_{i} = Add (widened_{i}, "{i}.wide.bias")
            bent_{i} = Gelu (wide_{i})
            narrowed_{i} = MatMul (bent_{i}, "{i}.narrow.weight")
            narrow_{i} = Add (narrowed_{i}, "{i}.narrow.bias")
            stream_{i + 1} = Add (attended_{i}, narrow_{i})""")
    return network(f"""
        <ir_version: 11, opset_import: ["" : 23]>
        transformer (int64[N, T] characters) => (float[N, T, {len(SYMBOLS)}] scores)
        <float[{len(SYMBOLS)}, {WIDTH}] "characters.table", float[{CONTEXT}, {WIDTH}] "places.table", {"".join(weights)}
         float[{WIDTH}] "norm.scale", float[{WIDTH}] "norm.bias", float[{WIDTH}, {len(SYMBOLS)}] "scores.weight",
         int64[1] zero = {{0}}>
        {{
            meaning = Gather ("characters.table", characters)
            length = Shape <start: int = 1, end: int = 2> (characters)
            places = Slice ("places.table", zero, length)
            stream_0 = Add (meaning, places)
            {"".join(nodes)}
            norm = LayerNormalization (stream_{LAYERS}, "norm.scale", "norm.bias")
            scores = MatMul (norm, "scores.weight")
        }}""")


def numbers_of(text: str) -> np.ndarray:
    """Characters as their places in SYMBOLS, i64."""
    unknown = SYMBOLS.index("?")
    places = {c: i for i, c in enumerate(SYMBOLS)}
    return np.array([places.get(c, unknown) for c in text], np.int64)


def manual() -> np.ndarray:
    """The help texts in numbers, without their tables and with single blanks."""
    lines = (" ".join(line.split()) for name in sorted(topics) for line in topics[name].splitlines())
    return numbers_of("\n".join(line for line in lines if line[:1] not in ("|", "+")))


def bits_of_pairs(text: np.ndarray, test: np.ndarray) -> float:
    """Bits per character of the test text if each depends on the one before it, as often as in the training text."""
    counts = np.full((len(SYMBOLS), len(SYMBOLS)), 0.1)
    np.add.at(counts, (text[:-1], text[1:]), 1)
    shares = counts / counts.sum(1, keepdims=True)
    return float(-np.log2(shares[test[:-1], test[1:]]).mean())


def bits_of_model(path: Path, test: np.ndarray) -> float:
    """Bits per character of the test text, in pieces that each begin without a context, in stock onnxruntime."""
    count = (len(test) - 1) // CONTEXT
    characters, following = (t[: count * CONTEXT].reshape(count, CONTEXT) for t in (test, test[1:]))
    scores = in_onnxruntime(path, characters=characters)
    scores -= scores.max(2, keepdims=True)
    right = np.take_along_axis(scores, following[..., np.newaxis], 2)[..., 0]
    return float((np.log(np.exp(scores).sum(2)) - right).mean() / np.log(2))


def write(path: Path, start: str, count: int, temperature: float = 0.6) -> str:
    """What the exported model writes after `start`, drawn character by character in stock onnxruntime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    random, text = np.random.default_rng(0), start
    for _ in range(count):
        scores = session.run(None, {"characters": numbers_of(text[-CONTEXT:])[np.newaxis]})[0][0, -1] / temperature
        chances = np.exp(scores - scores.max(), dtype=np.float64)
        text += SYMBOLS[random.choice(len(SYMBOLS), p=chances / chances.sum())]
    return text


def story(place: Path, steps: int = 1500, batch: int = 32) -> dict[str, float]:
    """Tells the story; the bits per character by name."""
    everything = manual()
    text, test = np.split(everything, [len(everything) * 9 // 10])
    training = compiler.make_training_model(
        transformer(),
        loss="cross_entropy",
        optimizer="adamw",
        lr=0.003,
        weight_decay=0.1,
        no_decay=["*.bias", "*.scale", "*.table"],
        schedule={"name": "cosine", "total_steps": steps, "warmup": steps // 20},
        clip_norm=1.0,
        initialize="normal",
    )
    step = compiler.compile(training, dims={"N": batch, "T": CONTEXT}, outputs=["loss"])
    step.initialize()
    print(f"{len(text)} characters, {sum(a.size for n, a in step.state.items() if '.exp_avg' in n) // 2} parameters")
    random = np.random.default_rng(0)
    for number in range(1, steps + 1):
        places = random.integers(0, len(text) - CONTEXT, (batch, 1)) + np.arange(CONTEXT)
        loss = float(step(characters=text[places], label=text[places + 1])["loss"])
        if number in (1, steps // 10, steps // 4, steps // 2, steps):
            print(f"step {number:5}  {loss / np.log(2):.2f} bits per character")
    path = place / "text.onnx"
    step.export(path)

    found = {
        "any character as likely": float(np.log2(len(SYMBOLS))),
        "pairs of characters": bits_of_pairs(text, test),
        "transformer": bits_of_model(path, test),
    }
    print(f"\nbits per character of {len(test)} others")
    for name, bits in found.items():
        print(f"{name:<24} {bits:10.2f}")
    print("\n" + write(path, "The statement ", 500))
    return found


if __name__ == "__main__":
    story(folder())
