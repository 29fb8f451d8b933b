"""onnxc.ConvWeightGrad: the gradient of a convolution by its weights."""

from __future__ import annotations

from math import gcd

from compiler.codegen.calls import Call, In, Scratch, Site, Temp, Words, lowers
from compiler.codegen.kernels.conv_geometry import PHASE, forward, image, phases
from compiler.codegen.kernels.conv_image import make_pad
from compiler.codegen.kernels.conv_planes import conv_planes_weight, weight_is_depthwise
from compiler.codegen.kernels.conv_pointwise import thin_out
from compiler.codegen.kernels.conv_winograd_weight import choose, winograd_weight
from compiler.codegen.kernels.gemm_panels import ONE
from compiler.codegen.kernels.gemm_tile import BLOCK, factors_of, fitting, make_pack, make_store, parts
from compiler.codegen.native import Kernel, Tile, i64, kernel, make_micro, make_tile, per_target

HEADER = 39  # words of a plan before its phase


@per_target
def make_conv_weight(dtype: str, tile: Tile) -> Kernel:
    """Items [lo, hi) of dw: an item is nr output channels of a block of input channels of a group.

    plan: see `conv_weight_grad`. dw[o, (c, tap)] is a product with the positions of all images as its inner axis:
    rows are (c, tap), read from the padded image by tables; columns are output channels, from a packed panel of dy. A
    *run* of positions (a chunk of an image, or several small images) is one chain of multiply-adds; runs add up in
    order in `sums`, which holds [rows, nr] for each item.
    """
    mr, nr, size, number, ptr = parts(dtype, tile)
    micro = make_micro(dtype, tile, a_row_table=True, a_col_table=True)
    pad, pack, store = make_pad(dtype), make_pack(dtype, tile), make_store(dtype, tile)
    result, zero, (factors, prepare) = make_tile(mr * nr, dtype), number(0), factors_of(dtype)

    @kernel
    def conv_weight(lo: int, hi: int, x: int, dy: int, dw: int, sums: int, plan: int, scratch: int) -> None:
        s = i64(plan, 0)
        image_size, channel = s[3], s[4]
        images, groups, chunks, cin, cout, out_size = s[21], s[22], s[23], s[24], s[25], s[26]
        height, blocks, panels, span, extent, inner = s[27], s[28], s[29], s[30], s[31], s[32]
        step, out_h, out_w, step_d, step_h, taps = s[33], s[34], s[35], s[36], s[37], s[38]
        terms, grid, longest = cin * taps, blocks * panels, span * step * inner
        in_rows, in_columns = scratch, scratch + 8 * (terms + mr)
        panel = (in_columns + 8 * longest + 63) // 64 * 64
        padded = panel + size * longest * nr
        rows, columns, t, f = i64(in_rows, 1), i64(in_columns, 2), result(), factors()
        prepare(f, ONE, ONE)
        for r in range(terms + mr):
            q = min(r, terms - 1)
            rows[r] = q // taps * channel + s[HEADER + PHASE + 2 * (q % taps)]
        for i in range(span):
            for p in range(step * inner):
                place = p // out_w // out_h * step_d + p // out_w % out_h * step_h + p % out_w
                columns[i * step * inner + p] = i * cin * channel + place
        for group in range(lo // grid, (hi - 1) // grid + 1):
            a, b = max(lo - group * grid, 0), min(hi - group * grid, grid)
            c0, c1 = a // panels * height, min(cin, ((b - 1) // panels + 1) * height)
            for n0 in range(0, images, span):
                more = min(span, images - n0)
                for chunk in range(chunks):
                    count = min(step, extent - chunk * step) * inner
                    first = n0 == 0 and chunk == 0
                    for i in range(more):
                        source = x + size * ((n0 + i) * groups + group) * cin * image_size
                        pad(c0, c1, source, plan, chunk, padded + size * i * cin * channel)
                    for o in range(panels):
                        block0, block1 = (a - o + panels - 1) // panels, (b - 1 - o) // panels + 1
                        if block0 >= block1:
                            continue
                        for i in range(more):
                            plane = ((n0 + i) * groups + group) * cout + o * nr
                            at = dy + size * (plane * out_size + chunk * step * inner)
                            pack(0, count, at, 1, out_size, min(nr, cout - o * nr), panel + size * i * count * nr)
                        for block in range(block0, block1):
                            r0, end = block * height * taps, min((block + 1) * height, cin) * taps
                            place = sums + size * ((group * blocks + block) * panels + o) * height * taps * nr
                            for r in range(r0, end, mr):
                                micro(padded, in_rows + 8 * r, in_columns, panel, nr, more * count, t, nr)
                                to = place + size * (r - r0) * nr
                                store(0, min(mr, end - r), t, nr, to, nr, 0 if first else to, nr, 1, f)
            for item in range(a, b):
                block, o = item // panels, item % panels
                r0, end = block * height * taps, min((block + 1) * height, cin) * taps
                total = ptr(sums + size * (group * grid + item) * height * taps * nr, 3)
                for j in range(min(nr, cout - o * nr)):
                    to_ = ptr(dw + size * (((group * cout + o * nr + j) * cin) * taps + r0), 4)
                    for r in range(end - r0):
                        to_[r] = total[r * nr + j] if images * out_size > 0 else zero

    return conv_weight


@lowers("onnxc.ConvWeightGrad")
def conv_weight_grad(site: Site) -> list[Call]:
    """Inputs dy [n, groups*cout, ...] and x [n, groups*cin, ...]; the gradient [groups*cout, cin, kernel ...]."""
    dy, x, dw = site.type(0).shape, site.type(1), site.out().shape
    geometry = forward(site, x.shape[2:], dw[2:], dy[2:])
    groups = site.node.attr("group", 1)
    cin, cout, taps = dw[1], dw[0] // groups, geometry.taps
    if weight_is_depthwise(geometry, cin, cout):
        return conv_planes_weight(site, geometry, cout)
    if scheme := choose(geometry, x.dtype, x.shape[0], groups, cin, cout):
        return winograd_weight(site, scheme, geometry, cin, cout)
    tile, _ = fitting(x.dtype, cout)
    mr, nr, size, _, _ = parts(x.dtype, tile)
    before = list[Call]()
    source: In | Temp = site.read(1)
    if (thin := geometry.thinned) is not None:
        before, source = thin_out(site, 1, geometry, thin)
        geometry = thin
    img = image(geometry, cin, size, most=BLOCK)
    outs = tuple(a.out for a in geometry.axes)
    inner = geometry.output_size // outs[img.cut] if geometry.output_size else 0
    span = max(1, BLOCK // max(1, geometry.output_size)) if img.chunks == 1 else 1
    span = min(span, max(1, x.shape[0]))
    panels = -(-cout // nr)
    unit = mr // gcd(mr, taps)  # so many channels make whole tiles
    wanted = -(-16 // max(1, groups * panels))
    height = unit * -(-cin // (unit * wanted)) if cin else 1
    blocks = -(-cin // height)
    words = (
        *img.words(geometry),
        *(x.shape[0], groups, img.chunks, cin, cout, geometry.output_size),
        *(height, blocks, panels, span, outs[img.cut], inner),
        *(img.step, outs[1], outs[2], img.steps[0] * img.extent[1] * img.row, img.steps[1] * img.row, taps),
    )
    assert len(words) == HEADER
    (phase,) = phases(geometry, img) or [(0,) * PHASE]
    longest = span * img.step * inner
    nbytes = 8 * (cin * taps + mr + longest) + 64 + size * (longest * nr + span * cin * img.channel + parts(x.dtype).nr)
    n = groups * blocks * panels
    sums = Temp("sums", n * height * taps * nr * size)
    args = (source, site.read(0), site.write(), sums, Words((*words, *phase)), Scratch(nbytes))
    return [*before, Call(make_conv_weight(x.dtype, tile), n, args)]
