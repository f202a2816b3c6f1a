"""The Triton kernels behind :mod:`~pyro_attention.blocked.ops.fused_attention`: nothing leaves the chip but results.

Tensors are contiguous ``[S, M or N, width]``, row vectors ``[S, M]``. A program has one block of queries (forward,
backward_queries) or of keys (backward_keys) of one slice and walks over the other side, so every output has one writer:
no atomics, and gradients are the same each time. Exponentials and NOISY are in base 2, which is what a GPU computes:
1.4426950408889634 is log2(e), 0.6931471805599453 its reciprocal.
"""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError as error:  # this module can be read without; fused_attention then calls none of it
    if error.name != "triton":
        raise

    class triton:  # noqa: N801
        jit = staticmethod(lambda function: function)


__all__ = ["backward_keys", "backward_queries", "forward"]


@triton.jit
def _uniform(offset, multiplier, column):
    """Compute CounterNoise._uniform, bit for bit; all arguments are int32."""
    x = (offset + column).to(tl.uint32, bitcast=True)
    x = (x ^ (x >> 16)) * multiplier.to(tl.uint32, bitcast=True)
    x = (x ^ (x >> 15)) * 0x846CA68B
    # the bits of a float32 in [1, 2); the constant is 1 - 2^-24
    return ((x >> 9) | 0x3F800000).to(tl.float32, bitcast=True) - 0.99999994039535522


@triton.jit
def _log2(x, FAST: tl.constexpr):
    """Compute log2; if FAST by one instruction with an absolute error of 2^-22, where Triton's own takes twenty."""
    if FAST:
        y = tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        y = tl.log2(x)
    return y


@triton.jit
def _exponential(u, FAST: tl.constexpr):
    """Return minus the logarithm of u, with a relative error below 2^-16 also where u is close to 1.

    The series is below it everywhere, and so is the fast logarithm less its largest error: the larger of the two is the
    better one. A choice by a comparison takes more instructions, as its results do not fit into the predicates.
    """
    d = 1.0 - u
    series = d * (1.0 + d * (0.5 + d * 0.3333333333333333))
    logarithm = -0.6931471805599453 * _log2(u, FAST)
    if FAST:
        logarithm -= 1.6525916589735634e-07  # log(2) 2^-22
    return tl.maximum(series, logarithm)


@triton.jit
def _erfinv(x, FAST: tl.constexpr):
    """Compute the inverse error function in single precision, by polynomials of Giles (2012), GPU Computing Gems."""
    w = -0.6931471805599453 * _log2((1.0 - x) * (1.0 + x), FAST)
    a, b = w - 2.5, tl.sqrt(w) - 3.0
    p = 3.43273939e-07 + 2.81022636e-08 * a
    p = -3.5233877e-06 + p * a
    p = -4.39150654e-06 + p * a
    p = 0.00021858087 + p * a
    p = -0.00125372503 + p * a
    p = -0.00417768164 + p * a
    p = 0.246640727 + p * a
    p = 1.50140941 + p * a
    t = 0.000100950558 - 0.000200214257 * b
    t = 0.00134934322 + t * b
    t = -0.00367342844 + t * b
    t = 0.00573950773 + t * b
    t = -0.0076224613 + t * b
    t = 0.00943887047 + t * b
    t = 1.00167406 + t * b
    t = 2.83297682 + t * b
    return tl.where(w < 5.0, p, t) * x


@triton.jit
def _noise(offset, multiplier, column, NOISE: tl.constexpr, FAST: tl.constexpr):
    """Compute the noise of CounterNoise.block, times log2(e) as scores are."""
    u = _uniform(offset, multiplier, column)
    if NOISE == "log_exponential":
        noise = _log2(_exponential(u, FAST), FAST)
    else:
        noise = 2.040278893193579 * _erfinv(2.0 * u - 1.0, FAST)
    return noise


@triton.jit
def _load(base, rows, count, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load rows of a matrix, zero beyond its edges."""
    columns = tl.arange(0, PADDED)
    inside = rows[:, None] < count
    if PADDED != WIDTH:
        inside = inside & (columns[None, :] < WIDTH)
    return tl.load(base + rows[:, None] * WIDTH + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _store(base, rows, count, x, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Store rows of a matrix, in the dtype of the memory."""
    columns = tl.arange(0, PADDED)
    inside = (rows[:, None] < count) & (columns[None, :] < WIDTH)
    tl.store(base + rows[:, None] * WIDTH + columns[None, :], x.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _bias(MASK, slice, columns, keys):
    """Return zero for the keys that may be attended to, else -inf."""
    allowed = columns < keys
    if MASK is not None:
        allowed = tl.load(MASK + slice * keys + columns, mask=allowed, other=0) != 0
    return tl.where(allowed, 0.0, float("-inf"))


@triton.jit
def _scores(q, k, MASK, slice, rows, columns, keys, CAUSAL: tl.constexpr, PRECISION: tl.constexpr):
    """Return scores of a block in base 2, -inf where a query may not attend to a key."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * 1.4426950408889634
    scores += _bias(MASK, slice, columns, keys)[None, :]
    if CAUSAL:
        scores = tl.where(rows[:, None] >= columns[None, :], scores, float("-inf"))
    return scores


@triton.jit
def _row(POINTER, slice, rows, queries, other):
    """Return a part of a row vector ``[S, M]``."""
    return tl.load(POINTER + slice * queries + rows, mask=rows < queries, other=other)


@triton.jit
def _slice_and_block(count, BLOCK: tl.constexpr, BACKWARDS: tl.constexpr):
    """Return the slice and the block of this program.

    They count backwards where the last blocks are the longest, which should start first.
    """
    blocks = tl.cdiv(count, BLOCK)
    block = tl.program_id(0) % blocks
    if BACKWARDS:
        block = blocks - 1 - block
    return (tl.program_id(0) // blocks).to(tl.int64), block


@triton.jit
def _softmax_step(x, maximum, total):
    """Return exponentials of a block, running maximum and total, and the factor of everything before."""
    new = tl.maximum(maximum, tl.max(x, 1))
    weights, factor = tl.exp2(x - new[:, None]), tl.exp2(maximum - new)
    return weights, new, total * factor + tl.sum(weights, 1), factor


@triton.jit
def forward(
    Q, K, V, SCALE, MASK, OFFSETS, MULTIPLIERS, COLUMNS, CONTEXT, NOISY, PLAIN, queries, keys,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr,
    NOISE: tl.constexpr, FAST: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Compute the context, and the normalizers of noisy and of plain scores, of a block of queries."""
    slice, block = _slice_and_block(queries, ROWS, CAUSAL)
    rows = block * ROWS + tl.arange(0, ROWS)
    q = _load(Q + slice * queries * WIDTH, rows, queries, WIDTH, PADDED)
    if NOISE is not None:
        scale = tl.load(SCALE + slice)
        offset, multiplier = _row(OFFSETS, slice, rows, queries, 0), _row(MULTIPLIERS, slice, rows, queries, 0)
    # finite, so that the exponential of a masked score is zero where a row has seen nothing else
    maximum, total = tl.full([ROWS], -1.0e38, tl.float32), tl.zeros([ROWS], tl.float32)
    plain_maximum, plain_total = tl.full([ROWS], -1.0e38, tl.float32), tl.zeros([ROWS], tl.float32)
    context = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    stop = keys
    if CAUSAL:
        stop = tl.minimum(keys, (block + 1) * ROWS)
    for start in range(0, stop, COLS):
        columns = start + tl.arange(0, COLS)
        k = _load(K + slice * keys * WIDTH, columns, keys, WIDTH, PADDED)
        v = _load(V + slice * keys * VALUE_WIDTH, columns, keys, VALUE_WIDTH, VALUE_PADDED)
        scores = _scores(q, k, MASK, slice, rows, columns, keys, CAUSAL, PRECISION)
        if NOISE is not None:
            _, plain_maximum, plain_total, _ = _softmax_step(scores, plain_maximum, plain_total)
            column = tl.load(COLUMNS + columns, mask=columns < keys, other=0)
            scores += scale * _noise(offset[:, None], multiplier[:, None], column[None, :], NOISE, FAST)
        weights, maximum, total, factor = _softmax_step(scores, maximum, total)
        context = tl.dot(weights.to(v.dtype), v, context * factor[:, None], input_precision=PRECISION)
    if NOISE is None:
        plain_maximum, plain_total = maximum, total
    attends = total != 0.0  # of each row the same with and without noise; NaN, of scores that overflow, stays
    total, plain_total = tl.where(attends, total, 1.0), tl.where(attends, plain_total, 1.0)
    _store(CONTEXT + slice * queries * VALUE_WIDTH, rows, queries, context / total[:, None], VALUE_WIDTH, VALUE_PADDED)
    # zero where a row saw nothing, whose exponentials are zero then too
    noisy = tl.where(attends, maximum + tl.log2(total), 0.0)
    plain = tl.where(attends, plain_maximum + tl.log2(plain_total), 0.0) * 0.6931471805599453
    tl.store(NOISY + slice * queries + rows, noisy, mask=rows < queries)
    tl.store(PLAIN + slice * queries + rows, plain, mask=rows < queries)


@triton.jit
def backward_queries(
    Q, K, V, SCALE, MASK, OFFSETS, MULTIPLIERS, COLUMNS, NOISY, PLAIN, GRAD_CONTEXT, INNER, GRAD_PLAIN,
    GRAD_Q, GRAD_SCALE, queries, keys,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr,
    NOISE: tl.constexpr, FAST: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of queries, and the part of each in the gradient of the noise scale."""
    slice, block = _slice_and_block(queries, ROWS, CAUSAL)
    rows = block * ROWS + tl.arange(0, ROWS)
    q = _load(Q + slice * queries * WIDTH, rows, queries, WIDTH, PADDED)
    grad_context = _load(GRAD_CONTEXT + slice * queries * VALUE_WIDTH, rows, queries, VALUE_WIDTH, VALUE_PADDED)
    inner = _row(INNER, slice, rows, queries, 0.0)
    noisy = _row(NOISY, slice, rows, queries, float("inf"))  # no weight to what lies beyond the last query
    if NOISE is not None:
        scale = tl.load(SCALE + slice)
        offset, multiplier = _row(OFFSETS, slice, rows, queries, 0), _row(MULTIPLIERS, slice, rows, queries, 0)
    if GRAD_PLAIN is not None:
        plain = _row(PLAIN, slice, rows, queries, float("inf")) * 1.4426950408889634
        grad_plain = _row(GRAD_PLAIN, slice, rows, queries, 0.0)
    grad_q, grad_scale = tl.zeros([ROWS, PADDED], tl.float32), tl.zeros([ROWS], tl.float32)
    stop = keys
    if CAUSAL:
        stop = tl.minimum(keys, (block + 1) * ROWS)
    for start in range(0, stop, COLS):
        columns = start + tl.arange(0, COLS)
        k = _load(K + slice * keys * WIDTH, columns, keys, WIDTH, PADDED)
        v = _load(V + slice * keys * VALUE_WIDTH, columns, keys, VALUE_WIDTH, VALUE_PADDED)
        scores = _scores(q, k, MASK, slice, rows, columns, keys, CAUSAL, PRECISION)
        grad = tl.dot(grad_context, tl.trans(v), input_precision=PRECISION) - inner[:, None]
        if NOISE is None:
            grad *= tl.exp2(scores - noisy[:, None])
        else:
            column = tl.load(COLUMNS + columns, mask=columns < keys, other=0)
            noise = _noise(offset[:, None], multiplier[:, None], column[None, :], NOISE, FAST)
            grad *= tl.exp2(scores + scale * noise - noisy[:, None])
            if GRAD_SCALE is not None:
                grad_scale += tl.sum(noise * grad, 1)
        if GRAD_PLAIN is not None:
            grad += tl.exp2(scores - plain[:, None]) * grad_plain[:, None]
        grad_q = tl.dot(grad.to(k.dtype), k, grad_q, input_precision=PRECISION)
    _store(GRAD_Q + slice * queries * WIDTH, rows, queries, grad_q, WIDTH, PADDED)
    if GRAD_SCALE is not None:
        tl.store(GRAD_SCALE + slice * queries + rows, grad_scale * 0.6931471805599453, mask=rows < queries)


@triton.jit
def backward_keys(
    Q, K, V, SCALE, MASK, OFFSETS, MULTIPLIERS, COLUMNS, NOISY, PLAIN, GRAD_CONTEXT, INNER, GRAD_PLAIN,
    GRAD_K, GRAD_V, queries, keys,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr,
    NOISE: tl.constexpr, FAST: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of keys and of their values; scores are transposed, ``[COLS, ROWS]``."""
    slice, block = _slice_and_block(keys, COLS, False)
    columns = block * COLS + tl.arange(0, COLS)
    k = _load(K + slice * keys * WIDTH, columns, keys, WIDTH, PADDED)
    v = _load(V + slice * keys * VALUE_WIDTH, columns, keys, VALUE_WIDTH, VALUE_PADDED)
    bias = _bias(MASK, slice, columns, keys)
    if NOISE is not None:
        scale = tl.load(SCALE + slice)
        column = tl.load(COLUMNS + columns, mask=columns < keys, other=0)
    grad_k, grad_v = tl.zeros([COLS, PADDED], tl.float32), tl.zeros([COLS, VALUE_PADDED], tl.float32)
    first = 0
    if CAUSAL:
        first = block * COLS // ROWS * ROWS
    for start in range(first, queries, ROWS):
        rows = start + tl.arange(0, ROWS)
        q = _load(Q + slice * queries * WIDTH, rows, queries, WIDTH, PADDED)
        grad_context = _load(GRAD_CONTEXT + slice * queries * VALUE_WIDTH, rows, queries, VALUE_WIDTH, VALUE_PADDED)
        inner = _row(INNER, slice, rows, queries, 0.0)
        noisy = _row(NOISY, slice, rows, queries, float("inf"))  # no weight to what lies beyond the last query
        scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * 1.4426950408889634 + bias[:, None]
        if CAUSAL:
            scores = tl.where(rows[None, :] >= columns[:, None], scores, float("-inf"))
        if NOISE is None:
            weights = tl.exp2(scores - noisy[None, :])
        else:
            offset, multiplier = _row(OFFSETS, slice, rows, queries, 0), _row(MULTIPLIERS, slice, rows, queries, 0)
            noise = _noise(offset[None, :], multiplier[None, :], column[:, None], NOISE, FAST)
            weights = tl.exp2(scores + scale * noise - noisy[None, :])
        grad_v = tl.dot(weights.to(v.dtype), grad_context, grad_v, input_precision=PRECISION)
        grad = weights * (tl.dot(v, tl.trans(grad_context), input_precision=PRECISION) - inner[None, :])
        if GRAD_PLAIN is not None:
            plain = _row(PLAIN, slice, rows, queries, float("inf")) * 1.4426950408889634
            grad += tl.exp2(scores - plain[None, :]) * _row(GRAD_PLAIN, slice, rows, queries, 0.0)[None, :]
        grad_k = tl.dot(grad.to(q.dtype), q, grad_k, input_precision=PRECISION)
    _store(GRAD_K + slice * keys * WIDTH, columns, keys, grad_k, WIDTH, PADDED)
    _store(GRAD_V + slice * keys * VALUE_WIDTH, columns, keys, grad_v, VALUE_WIDTH, VALUE_PADDED)
