"""The compiled loops behind the fused kernels: Numba, float32, parallel over rows with the OpenMP layer.

Imported only when a fused kernel runs, for Numba takes a while to load. All loops stand in this one file because their
cache (`kernels/compiled.py`) looks at this file only: a helper elsewhere could change unnoticed.

Every value is worked out by one thread, or summed over parts whose bounds depend on the sizes alone, so the number of
threads changes nothing. `fastmath` is confined to flags under which NaN and infinity stay what they are.
"""

import sys
import time
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, prange, types
from numba.core import cgutils, event
from numba.extending import intrinsic
from numpy import float32, float64, int32, int64, uint32, uint64

from doubly.kernels.compiled import apart, kernel

# without the numpy error model a division may raise, and a loop that may be left early is not vectorised
_exact = njit(forceinline=True, error_model="numpy", fastmath={"contract"})
# reductions are vectorised only where the order of a sum is free
_row = njit(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
_inlined = njit(forceinline=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
# without memory of its own, a function need not count who holds an array, which takes longer than a short loop
_free: Any = {"error_model": "numpy", "fastmath": {"contract", "reassoc", "nsz"}, "_nrt": False}
# (a function that does not say so itself is inlined if the first that calls it is)
_uncounted = njit(forceinline=False, **_free)
_uncounted_inlined = njit(forceinline=True, **_free)
_apart = apart(**_free)
# The bodies of parallel loops are calls: whatever stands in them is slow to compile. They take the place as a signed
# integer, which it is while types are inferred: as the unsigned one that it becomes, they would be compiled twice.
_kernel = kernel(parallel=True, error_model="numpy")

ZERO, ONE = float32(0), float32(1)
LOG2_E = float32(1.4426950408889634)
LOG_2 = float32(0.6931471805599453)


# Functions of one number, written so that LLVM turns a loop over them into vector code. The polynomials are minimax
# fits (Remez) of the functions and on the intervals named.


@_exact
def exp2(x):
    """2^x to 1 ulp or so, and 2^-126 or 2^126 beyond these; NaN stays NaN."""
    return exp2_up_to_126(min(x, float32(126)))


@_exact
def exp2_up_to_126(x):
    """2^x for x that is not larger."""
    x = max(x, float32(-126))
    shifted = x + float32(3 * 2**22)  # rounds to a whole number, which is left in the low bits
    f = x - (shifted - float32(3 * 2**22))
    p = float32(0.00132647291)  # (2^f - 1) / f on |f| <= 1/2, so that whole numbers come out exactly
    p = p * f + float32(0.00967151264)
    p = p * f + float32(0.05550733737)
    p = p * f + float32(0.2402224209)
    p = p * f + float32(0.6931469776)
    p = p * f + ONE
    return int32(float32(p).view(int32) + (float32(shifted).view(int32) << 23)).view(float32)


@_exact
def log(x):
    """The natural logarithm of a positive normal number, to about 1 ulp."""
    bits = float32(x).view(int32)
    exponent = int32((bits - int32(0x3F3504F3)) >> 23)  # counted from sqrt(1/2)
    t = int32(bits - (exponent << 23)).view(float32) - ONE
    q = float32(0.09226649455)  # (log(1 + t) - t) / t^2 on sqrt(1/2) <= 1 + t <= sqrt(2)
    q = q * t + float32(-0.1435230143)
    q = q * t + float32(0.1477500808)
    q = q * t + float32(-0.1656202093)
    q = q * t + float32(0.1997445981)
    q = q * t + float32(-0.2500205851)
    q = q * t + float32(0.3333364268)
    q = q * t + float32(-0.4999999256)
    return float32(exponent) * LOG_2 + (t * t * q + t)


@_exact
def exp_minus_abs(x):
    """e^-|x|."""
    return exp2_up_to_126(abs(x) * -LOG2_E)


@_exact
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return ONE / (ONE + exp2(x * -LOG2_E))


# Random numbers, counter-based: each is a function of a key and of its place, whichever thread comes to it.

LANES = 16  # counters worked on side by side
BLOCK = 4 * LANES


@_exact
def philox(position, row, key_low, key_high):
    """Philox4x32-10 (Salmon et al. 2011): four random words for each counter (position, row) and key."""
    a, b, c, d = uint32(position), uint32(row), uint32(uint64(row) >> uint64(32)), uint32(0)
    for _ in range(10):
        p, q = uint64(0xD2511F53) * uint64(a), uint64(0xCD9E8D57) * uint64(c)
        a, b, c, d = uint32(q >> uint64(32)) ^ b ^ key_low, uint32(q), uint32(p >> uint64(32)) ^ d ^ key_high, uint32(p)
        key_low, key_high = uint32(key_low + uint32(0x9E3779B9)), uint32(key_high + uint32(0xBB67AE85))
    return a, b, c, d


@_row
def random_words(n, row, key_low, key_high):
    """At least n random words, the same for each (row, key)."""
    words = np.empty(((n + BLOCK - 1) // BLOCK, 4, LANES), uint32)
    for block in range(words.shape[0]):
        for lane in range(LANES):
            a, b, c, d = philox(block * LANES + lane, row, key_low, key_high)
            words[block, 0, lane] = a
            words[block, 1, lane] = b
            words[block, 2, lane] = c
            words[block, 3, lane] = d
    return words.reshape(words.size)


@_exact
def lower_half(word):
    """A uniform number in (0, 1/2], as fine towards 0 as the word allows and never 0 itself; one bit is left over."""
    return float32(int32(word >> uint32(1))) * float32(2.0**-32) + float32(2.0**-33)


@_row
def logistic_noise(n, row, key_low, key_high):
    """At least n draws of log(u / (1 - u)): a logit that exceeds its draw gives a 1 with the right probability."""
    words = random_words(n, row, key_low, key_high)
    noise = np.empty(words.shape[0], float32)
    for i in range(words.shape[0]):
        u = lower_half(words[i])
        below = log(u) - log(ONE - u)
        noise[i] = below if words[i] & uint32(1) else -below
    return noise


NORMALS = 1024  # made at a time, from as many words


@_row
def normals(out, row, key_low, key_high):
    """Standard normals by Box and Muller: sqrt(-2 log u) times the cosine and the sine of a random angle."""
    words = random_words(NORMALS, row, key_low, key_high)
    half = NORMALS // 2
    lengths, angles, first, second = words[:half], words[half:], out[:half], out[half:]
    for i in range(half):
        length = np.sqrt(float32(-2) * log(float32(2) * lower_half(lengths[i])))
        # 30 bits give an angle within 1/8 turn of the first axis, one turns it by 1/2, one swaps the axes
        t = float32(int32(uint32(angles[i] << uint32(2)))) * float32(2.0**-32)
        s = t * t
        cosine = float32(0.0009036317031)  # cos(t pi/2) in t^2
        cosine = cosine * s + float32(-0.02086007132)
        cosine = cosine * s + float32(0.2536692039)
        cosine = cosine * s + float32(-1.233700541)
        cosine = cosine * s + ONE
        sine = float32(-0.004602176989)  # sin(t pi/2) / t in t^2
        sine = sine * s + float32(0.07968022806)
        sine = sine * s + float32(-0.6459634786)
        sine = sine * s + float32(1.570796322)
        turned = -length if angles[i] & uint32(0x80000000) else length
        along, across = turned * cosine, turned * (sine * t)
        swapped = angles[i] & uint32(0x40000000)
        first[i] = across if swapped else along
        second[i] = along if swapped else across


@_row
def normal_part(out, part, key_low, key_high):
    start = part * NORMALS
    if start + NORMALS <= out.shape[0]:
        normals(out[start : start + NORMALS], part, key_low, key_high)
    else:
        last = np.empty(NORMALS, float32)
        normals(last, part, key_low, key_high)
        for i in range(out.shape[0] - start):  # an assignment would compile an error message of its own
            out[start + i] = last[i]


@_kernel
def normal(out, key_low, key_high):
    """Fill a vector with standard normals."""
    for part in prange((out.shape[0] + NORMALS - 1) // NORMALS):
        normal_part(out, int64(part), key_low, key_high)


# Importance weights of a mini-batch: too few for threads.


@kernel(error_model="numpy")
def summarise(log_p, log_q, weight, share, means):
    """Normalised weights (S, B), the same over B, and means over the rows of log mean weight and of effective draws."""
    draws, rows = log_p.shape
    log_mean, effective = 0.0, 0.0
    for k in range(rows):
        largest = log_p[0, k] - log_q[0, k]
        for s in range(1, draws):
            value = log_p[s, k] - log_q[s, k]
            if value > largest or np.isnan(value):
                largest = value
        total, squares = 0.0, 0.0
        for s in range(draws):
            w = np.exp(float(log_p[s, k] - log_q[s, k] - largest))
            weight[s, k] = w
            total += w
            squares += w * w
        for s in range(draws):
            weight[s, k] = weight[s, k] / total
            share[s, k] = weight[s, k] / float32(rows)
        log_mean += float(largest) + np.log(total / draws)
        effective += total * total / squares
    means[0] = log_mean / rows
    means[1] = effective / rows


# Moves of the weights, each in one pass. Parts are those of the random numbers.


@_row
def thermostat_part(part, u, excess, grad, eta, friction, heat, rate, new_u, new_excess, key_low, key_high):
    noise = np.empty(NORMALS, float32)
    normals(noise, part, key_low, key_high)
    start = part * NORMALS
    end = min(start + NORMALS, u.shape[0])
    v, a, g, w, b = u[start:end], excess[start:end], grad[start:end], new_u[start:end], new_excess[start:end]
    spread = float32(np.sqrt(2 * friction * heat))
    eta, friction, heat, rate = float32(eta), float32(friction), float32(heat), float32(rate)
    for i in range(v.shape[0]):
        moved = v[i] - (friction + a[i]) * v[i] + eta * g[i] + spread * noise[i]
        w[i] = moved
        b[i] = a[i] + rate * (moved * moved - heat)


@_kernel
def thermostat(u, excess, grad, eta, friction, heat, rate, new_u, new_excess, key_low, key_high):
    """Euler's step of a Nosé–Hoover thermostat for each weight; heat is eta T."""
    for part in prange((u.shape[0] + NORMALS - 1) // NORMALS):
        thermostat_part(int64(part), u, excess, grad, eta, friction, heat, rate, new_u, new_excess, key_low, key_high)


@_exact
def heated_one(theta, v, alpha, grad, root, noise, strength, cold, speed, energy, least, most):
    """One weight through B, O, B, A and D, where strength is a T and cold 1 / T."""
    kick = float32(0.5) * root * grad
    keep = exp2(alpha * -LOG2_E)
    # (1 - exp(-2 alpha)) / alpha, which single precision would lose where alpha is small
    series = float32(2) - alpha * (float32(2) - alpha * (float32(4 / 3) - alpha * float32(2 / 3)))
    share = series if alpha < float32(0.05) else (ONE - keep * keep) / alpha
    moved = keep * (v + kick) + np.sqrt(strength * share) * noise + kick
    hot = min(moved * moved * cold, energy) - ONE
    friction = alpha * exp2(speed * hot * LOG2_E)
    return theta + root * moved, moved, min(max(friction, least), most)


@_row
def heated_part(part, theta, v, alpha, grad, root, numbers, new_theta, new_v, new_alpha, key_low, key_high):
    noise = np.empty(NORMALS, float32)
    normals(noise, part, key_low, key_high)
    start = part * NORMALS
    end = min(start + NORMALS, v.shape[0])
    t, w, a, g = theta[start:end], v[start:end], alpha[start:end], grad[start:end]
    new_t, new_w, new_a = new_theta[start:end], new_v[start:end], new_alpha[start:end]
    strength, cold, speed, energy, least, most = numbers
    if root.shape[0] == 1:
        r = root[0]
        for i in range(w.shape[0]):
            new_t[i], new_w[i], new_a[i] = heated_one(
                t[i], w[i], a[i], g[i], r, noise[i], strength, cold, speed, energy, least, most
            )
    else:
        rs = root[start:end]
        for i in range(w.shape[0]):
            new_t[i], new_w[i], new_a[i] = heated_one(
                t[i], w[i], a[i], g[i], rs[i], noise[i], strength, cold, speed, energy, least, most
            )


@_kernel
def heated(
    theta, v, alpha, grad, root, friction, temperature, speed, energy, least, most, new_theta, new_v, new_alpha,
    key_low, key_high
):  # fmt: skip
    """A step of a thermostat for each weight, from the kick on; root is sqrt(eta), of one number or one for each."""
    numbers = (
        float32(friction * temperature), float32(1 / temperature), float32(speed), float32(energy),
        float32(least * friction), float32(most),
    )  # fmt: skip
    for part in prange((v.shape[0] + NORMALS - 1) // NORMALS):
        heated_part(int64(part), theta, v, alpha, grad, root, numbers, new_theta, new_v, new_alpha, key_low, key_high)


@_row
def adam_part(start, theta, m, v, grad, beta1, beta2, move, correction, epsilon, new_theta, new_m, new_v):
    end = min(start + NORMALS, theta.shape[0])
    t, a, b, g = theta[start:end], m[start:end], v[start:end], grad[start:end]
    new_t, new_a, new_b = new_theta[start:end], new_m[start:end], new_v[start:end]
    keep, take, fresh = float32(beta2), float32(1 - beta2), float32(1 - beta1)
    move, correction, epsilon = float32(move), float32(correction), float32(epsilon)
    for i in range(t.shape[0]):
        mean = a[i] + fresh * (g[i] - a[i])
        square = keep * b[i] + take * g[i] * g[i]
        new_a[i] = mean
        new_b[i] = square
        new_t[i] = t[i] + move * mean / (np.sqrt(square) * correction + epsilon)


@_kernel
def adam(theta, m, v, grad, beta1, beta2, move, correction, epsilon, new_theta, new_m, new_v):
    """theta + move m / (correction sqrt(v) + epsilon), with the new moments m and v."""
    for part in prange((theta.shape[0] + NORMALS - 1) // NORMALS):
        start = int64(part) * NORMALS
        adam_part(start, theta, m, v, grad, beta1, beta2, move, correction, epsilon, new_theta, new_m, new_v)


# Bernoulli variables.

# factors between 1 and 2 that can be multiplied before a float32 overflows, and how many such products before a float64
# does, with a little to spare
FACTORS, PRODUCTS = 112, 8


@_exact
def bernoulli_terms(logit, x):
    """1 + e^-|l|, x l - max(l, 0) and x - sigmoid(l): what the log-probability of x and its gradient are made of."""
    e = exp_minus_abs(logit)
    return ONE + e, x * logit - max(logit, ZERO), x - (ONE if logit >= ZERO else e) / (ONE + e)


def _scorer(name: str, shift: bool, keep: bool) -> Any:
    def score(logits, offset, value, residual):
        """sum_i x_i l_i - softplus(l_i); with `keep`, residual_i = x_i - sigmoid(l_i) comes with it.

        softplus(l) = max(l, 0) + log(1 + e^-|l|), and of the last, products are taken before the logarithm.
        With `shift`, l = logits + offset, and the residual takes the place of the logits.
        """
        total, products, n = 0.0, 1.0, 0
        for start in range(0, logits.shape[0], FACTORS):
            end = start + FACTORS
            logit, x, o = logits[start:end], value[start:end], offset[start:end]
            r = logit if shift else residual[start:end]
            product, linear = ONE, ZERO
            for i in range(logit.shape[0]):
                factor, term, left = bernoulli_terms(logit[i] + o[i] if shift else logit[i], x[i])
                product *= factor
                linear += term
                if keep:
                    r[i] = left
            total, products, n = total + float(linear), products * float(product), n + 1
            if n == PRODUCTS:
                total, products, n = total - np.log(products), 1.0, 0
        return float32(total - np.log(products))

    # Compiled code goes by name. Of two functions with the same one, compiled by different processes and loaded from
    # the disk cache by a third, one would be called in the place of the other.
    score.__name__ = score.__qualname__ = name
    return _row(score)


score_row = _scorer("score_row", shift=False, keep=False)
score_row_and_keep = _scorer("score_row_and_keep", shift=False, keep=True)
score_shifted_row = _scorer("score_shifted_row", shift=True, keep=False)
score_shifted_row_and_keep = _scorer("score_shifted_row_and_keep", shift=True, keep=True)


@_row
def draw_row(logits, value, row, key_low, key_high):
    """0 or 1 with these log-odds. The rarer of the two is drawn, so that its probability is exact however small."""
    words = random_words(logits.shape[0], row, key_low, key_high)
    for i in range(logits.shape[0]):
        e = exp_minus_abs(logits[i])
        # the rarer comes with probability e / (1 + e) <= 1/2; the uniform number is from the lower half only
        rarer = lower_half(words[i]) * (ONE + e) < float32(0.5) * e
        value[i] = ONE if (logits[i] >= ZERO) != rarer else ZERO


@_row
def bernoulli_row(row, logit, x, drawing, key_low, key_high, log_prob, residual):
    if drawing:
        draw_row(logit, x, row, key_low, key_high)
    if residual.shape[0] > 0:
        log_prob[row] = score_row_and_keep(logit, x, x, residual[row])
    else:
        log_prob[row] = score_row(logit, x, x, x)


@_kernel
def bernoulli(logits, value, drawing, key_low, key_high, log_prob, residual):
    """Draw `value` where asked, then score it. Row k goes with row k of the results, wrapping around."""
    for row in prange(log_prob.shape[0]):
        logit, x = logits[row % logits.shape[0]], value[row % value.shape[0]]
        bernoulli_row(int64(row), logit, x, drawing, key_low, key_high, log_prob, residual)


@_row
def bernoulli_shifted_row(row, logits, offset, value, keep, log_prob):
    o, x = offset[row % offset.shape[0]], value[row % value.shape[0]]
    if keep:
        log_prob[row] = score_shifted_row_and_keep(logits[row], o, x, x)
    else:
        log_prob[row] = score_shifted_row(logits[row], o, x, x)


@_kernel
def bernoulli_shifted(logits, offset, value, keep, log_prob):
    """Score values by the log-odds logits + offset; with `keep`, what is left takes the place of the logits."""
    for row in prange(log_prob.shape[0]):
        bernoulli_shifted_row(int64(row), logits, offset, value, keep, log_prob)


@_kernel
def bernoulli_draw(logits, value, key_low, key_high):
    """The values that `bernoulli` draws, without their score."""
    for row in prange(value.shape[0]):
        draw_row(logits[row % logits.shape[0]], value[row], int64(row), key_low, key_high)


COLUMNS = 128  # a task: few rows of many columns, and many rows of few, both make enough of them


@_row
def weighted_sum_part(k, start, weight, residual, out):
    total = out[k, start : start + COLUMNS]
    total[:] = ZERO
    for row in range(k, residual.shape[0], out.shape[0]):
        term, w = residual[row, start : start + COLUMNS], weight[row]
        for j in range(total.shape[0]):
            total[j] += w * term[j]


@_kernel
def weighted_sum(weight, residual, out):
    """out[k] = sum of weight[row] residual[row] over the rows that wrap around to k."""
    parts = (out.shape[1] + COLUMNS - 1) // COLUMNS
    for task in prange(out.shape[0] * parts):
        k, part = divmod(int64(task), parts)
        weighted_sum_part(k, part * COLUMNS, weight, residual, out)


# Draws that are nearly alike: of the binary vectors that are drawn for one row, most entries are the same in all. Their
# products with a matrix are the product of what they have in common, one row in place of many, and for each of them the
# few columns in which it is different.


@_row
def vote(k, voters, given, common):
    """What most of the first draws say. Any vector would do; this one leaves few differences."""
    total = common[k]
    total[:] = ZERO
    for draw in range(voters):
        one = given[draw * common.shape[0] + k]
        for j in range(total.shape[0]):
            total[j] += one[j]
    half = float32(0.5 * voters)
    for j in range(total.shape[0]):
        total[j] = ONE if total[j] > half else ZERO


@_row
def list_differences(row, given, common, where, count):
    one, other, found = given[row], common[row % common.shape[0]], where[row]
    n = 0
    for j in range(one.shape[0]):
        found[n] = j  # the next one overwrites it unless there is a difference: no branch to be guessed wrong
        n += one[j] != other[j]
    count[row] = n


@_kernel
def differences(given, voters, common, where, count):
    """What the rows that wrap around to one have in common, and for each row where it is different from that."""
    for k in prange(common.shape[0]):
        vote(int64(k), voters, given, common)
    for row in prange(given.shape[0]):
        list_differences(int64(row), given, common, where, count)


@_row
def add_differences(row, given, common, where, n, columns, out):
    """Add to `out` the columns (as rows of a matrix) in which this row is different, two at a time."""
    one, other, place = given[row], common[row % common.shape[0]], where[row]
    for i in range(0, n - 1, 2):
        j, k = place[i], place[i + 1]
        first, second, a, b = columns[j], columns[k], one[j] - other[j], one[k] - other[k]
        for c in range(out.shape[0]):
            out[c] += a * first[c] + b * second[c]
    if n % 2:
        j = place[n - 1]
        first, a = columns[j], one[j] - other[j]
        for c in range(out.shape[0]):
            out[c] += a * first[c]


@_row
def alike_row(row, given, common, where, count, columns, logits, value, drawing, key_low, key_high, log_prob, residual):
    own = logits[row % logits.shape[0]].copy()
    add_differences(row, given, common, where, count[row], columns, own)
    bernoulli_row(row, own, value[row % value.shape[0]], drawing, key_low, key_high, log_prob, residual)


@_kernel
def alike(given, common, where, count, columns, logits, value, drawing, key_low, key_high, log_prob, residual):
    """As `bernoulli`, for log-odds of which those of the common part are there, and the columns they are made with."""
    for row in prange(log_prob.shape[0]):
        alike_row(
            int64(row),
            given,
            common,
            where,
            count,
            columns,
            logits,
            value,
            drawing,
            key_low,
            key_high,
            log_prob,
            residual,
        )


SLICE = 64  # columns of a gradient that one task adds up, all rows in their order


@_row
def alike_backward_part(start, weight, given, common, where, count, residual, grad):
    for row in range(given.shape[0]):
        if weight[row] == ZERO:  # draws that are as good as impossible are not rare
            continue
        one, other, place, left = given[row], common[row % common.shape[0]], where[row], residual[row]
        term = left[start : start + SLICE]
        for i in range(count[row]):
            j = place[i]
            total, w = grad[j, start : start + SLICE], weight[row] * (one[j] - other[j])
            for c in range(total.shape[0]):
                total[c] += w * term[c]


@_kernel
def alike_backward(weight, given, common, where, count, residual, grad):
    """Add to the gradient, one row for each column, what the differences have of it."""
    for task in prange((residual.shape[1] + SLICE - 1) // SLICE):
        alike_backward_part(int64(task) * SLICE, weight, given, common, where, count, residual, grad)


# Conditional NADE: the hidden layer is sigmoid(a), where a starts at c and W_i is added wherever x_i is 1.
#
# It is held as e = exp(-a), so that such a step is one multiplication by exp(-W_i), and sigmoid(a) = 1 / (1 + e).
# Should e leave the range in which this is exact, or x_i be neither 0 nor 1, the rows are done again with a itself
# ("exact").

ROWS = 8  # rows that go through the outputs side by side, so that V is fetched once for all of them
PARTS, TILES = 16, 8  # weight gradients are summed in at most so many parts of at least so many tiles
LARGEST = float32(80)  # weights beyond this have no exponential that float32 can hold with room to spare
LOW, HIGH = int32((127 - 100) << 23), int32((127 + 100) << 23)  # 2^-100 and 2^100, as bits


@_row
def exponentials(W, i, sign, out):
    """exp(sign W_i), and NaN, which sets the alarm off, for what is too large."""
    for j in range(W.shape[1]):
        power = exp2(W[i, j] * sign * LOG2_E)
        out[i, j] = power if abs(W[i, j]) < LARGEST else float32(np.nan)


@_row
def start(state, hidden, t, exact):
    """The hidden layer of one row from its state; False where the state is out of range."""
    low, high = HIGH, LOW
    for j in range(state.shape[1]):
        e = exp2(state[t, j] * -LOG2_E) if exact else state[t, j]
        hidden[t, j] = ONE / (ONE + e)
        low, high = min(low, float32(e).view(int32)), max(high, float32(e).view(int32))
    return exact or (low >= LOW and high <= HIGH)


@_inlined
def step(state, hidden, t, factors, i):
    """exp(-a) times exp(-W_i); False where that is out of range."""
    low, high = HIGH, LOW
    for j in range(state.shape[1]):
        e = float32(state[t, j] * factors[i, j])
        state[t, j] = e
        hidden[t, j] = ONE / (ONE + e)
        low, high = min(low, e.view(int32)), max(high, e.view(int32))
    return low >= LOW and high <= HIGH


@_row
def exact_step(state, hidden, t, W, i, x):
    """a + x W_i."""
    for j in range(state.shape[1]):
        a = state[t, j] + x * W[i, j]
        state[t, j] = a
        hidden[t, j] = sigmoid(a)


@_inlined
def four_products(V, i, hidden, t):
    """V_i . hidden of four rows, V_i being read once."""
    p = q = r = s = ZERO
    for j in range(V.shape[1]):
        v = V[i, j]
        p += v * hidden[t, j]
        q += v * hidden[t + 1, j]
        r += v * hidden[t + 2, j]
        s += v * hidden[t + 3, j]
    return p, q, r, s


@_row
def sweep(first, count, c, r, W, factors, V, value, noise, logits, state, hidden, exact):  # noqa: C901 - one hot loop
    """Go through the outputs of `count` rows: fill `logits` and, where there is noise, `value`. False: out of range.

    `first` is where c, r and value have these rows, wrapping around; the others have nothing but them.
    """
    drawing = noise.shape[0] > 0
    rows = np.empty(ROWS, np.int64)
    hidden[:] = ZERO
    for t in range(count):
        rows[t] = (first + t) % value.shape[0]
        logits[t] = r[(first + t) % r.shape[0]]
        for j in range(c.shape[1]):
            a = c[(first + t) % c.shape[0], j]
            state[t, j] = a if exact else exp2(a * -LOG2_E)
        if not start(state, hidden, t, exact):
            return False
    products = np.empty(ROWS, float32)
    for i in range(V.shape[0]):
        for t in range(0, count, 4):
            products[t], products[t + 1], products[t + 2], products[t + 3] = four_products(V, i, hidden, t)
        for t in range(count):
            logit = logits[t, i] + products[t]
            logits[t, i] = logit
            if drawing:
                value[rows[t], i] = ONE if logit > noise[t, i] else ZERO
            x = value[rows[t], i]
            if x != ZERO:
                if exact:
                    exact_step(state, hidden, t, W, i, x)
                elif x != ONE or not step(state, hidden, t, factors, i):
                    return False
    return True


@_row
def nade_tile(tile, c, r, W, factors, V, value, drawing, key_low, key_high, log_prob, logits, residual, end, exact):
    first, width = tile * ROWS, V.shape[0]
    count = min(ROWS, log_prob.shape[0] - first)
    noise = np.empty((ROWS if drawing else 0, width), float32)
    if drawing:
        for t in range(count):
            noise[t] = logistic_noise(width, first + t, key_low, key_high)[:width]
    state, hidden = np.empty((ROWS, V.shape[1]), float32), np.empty((ROWS, V.shape[1]), float32)
    mine = logits[first : first + count] if logits.shape[0] > 0 else np.empty((count, width), float32)
    exact[tile] = False
    while not sweep(first, count, c, r, W, factors, V, value, noise, mine, state, hidden, exact[tile]):
        exact[tile] = True
    for t in range(count):
        row = first + t
        x = value[row % value.shape[0]]
        if residual.shape[0] > 0:
            log_prob[row] = score_row_and_keep(mine[t], x, x, residual[row])
            end[row] = state[t]
        else:
            log_prob[row] = score_row(mine[t], x, x, x)


@_kernel
def nade(c, r, W, V, value, drawing, key_low, key_high, log_prob, logits, residual, end, exact):
    """Draw `value` where asked, then score it. c, r and value wrap around: row k goes with row k of the results.

    `logits` are given back if they have rows; so are `residual` and the state at the `end` (`exact` says of what kind),
    which are for the gradient.
    """
    factors = np.empty_like(W)
    for i in prange(W.shape[0]):
        exponentials(W, i, -ONE, factors)
    for tile in prange(exact.shape[0]):
        nade_tile(tile, c, r, W, factors, V, value, drawing, key_low, key_high, log_prob, logits, residual, end, exact)


@_row
def segment(out, weight, row, V, low, high):
    """sum_i weight_i V_i over low <= i < high, four at a time so that the sum is not written so often."""
    for j in range(out.shape[0]):
        out[j] = ZERO
    four = low + (high - low) // 4 * 4
    for i in range(low, four, 4):
        p, q, r, s = weight[row, i], weight[row, i + 1], weight[row, i + 2], weight[row, i + 3]
        for j in range(out.shape[0]):
            out[j] += p * V[i, j] + q * V[i + 1, j] + r * V[i + 2, j] + s * V[i + 3, j]
    for i in range(four, high):
        p = weight[row, i]
        for j in range(out.shape[0]):
            out[j] += p * V[i, j]


@_row
def collect(carry, t, total, hidden):
    """What reaches a, through the derivative of the sigmoid."""
    for j in range(total.shape[0]):
        carry[t, j] += total[j] * hidden[t, j] * (ONE - hidden[t, j])


@_row
def add_scaled(out, i, scale, source, t):
    """out_i + scale source_t."""
    for j in range(out.shape[1]):
        out[i, j] += scale * source[t, j]


@_row
def add_rows(out, i, scale, source):
    """out_i + sum_t scale_t source_t, all the rows at once so that out_i is written once."""
    a, b, c, d, e, f, g, h = scale[0], scale[1], scale[2], scale[3], scale[4], scale[5], scale[6], scale[7]
    for j in range(out.shape[1]):
        first = a * source[0, j] + b * source[1, j] + c * source[2, j] + d * source[3, j]
        out[i, j] += first + (e * source[4, j] + f * source[5, j] + g * source[6, j] + h * source[7, j])


@_row
def sweep_back(first, count, W, factors, V, value, weight, end, exact, grad_c, grad_W, grad_V):
    """From the last output to the first, undoing the steps of the hidden layer, so that no state need be stored.

    The hidden layer is constant between two ones of x; what such a stretch of outputs sends back to it is collected
    when its first end is reached, and carried on to all that came before.
    """
    width, n_hidden = V.shape
    rows, upper = np.empty(ROWS, np.int64), np.empty(ROWS, np.int64)
    state, hidden = np.empty((ROWS, n_hidden), float32), np.zeros((ROWS, n_hidden), float32)
    carry, total, weights = np.zeros((ROWS, n_hidden), float32), np.empty(n_hidden, float32), np.zeros(ROWS, float32)
    for t in range(count):
        rows[t], upper[t] = (first + t) % value.shape[0], width
        state[t] = end[first + t]
        start(state, hidden, t, exact)
    for i in range(width - 1, -1, -1):
        for t in range(count):
            x = value[rows[t], i]
            if x != ZERO:
                segment(total, weight, first + t, V, i + 1, upper[t])
                upper[t] = i + 1
                collect(carry, t, total, hidden)
                add_scaled(grad_W, i, x, carry, t)
                if exact:
                    exact_step(state, hidden, t, W, i, -x)
                else:
                    step(state, hidden, t, factors, i)
            weights[t] = weight[first + t, i]
        add_rows(grad_V, i, weights, hidden)
    for t in range(count):
        segment(total, weight, first + t, V, 0, upper[t])
        collect(carry, t, total, hidden)
        grad_c[first + t] = carry[t]


@_row
def nade_backward_part(part, W, factors, V, value, weight, end, exact, grad_c, parts_W, parts_V):
    mine_W, mine_V, n_tiles, n_parts = parts_W[part], parts_V[part], exact.shape[0], parts_W.shape[0]
    mine_W[:] = ZERO
    mine_V[:] = ZERO
    for tile in range(part * n_tiles // n_parts, (part + 1) * n_tiles // n_parts):
        first = tile * ROWS
        count = min(ROWS, weight.shape[0] - first)
        sweep_back(first, count, W, factors, V, value, weight, end, exact[tile], grad_c, mine_W, mine_V)


@_row
def add_parts(parts, i, out):
    out[i] = ZERO
    for part in range(parts.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] += parts[part, i, j]


@_kernel
def nade_backward(W, V, value, weight, end, exact, grad_c, grad_W, grad_V):
    """Gradients of sum_k weight_k logits_k, the weights being constants; those of c one for each row."""
    n_parts = min(PARTS, (exact.shape[0] + TILES - 1) // TILES)
    factors = np.empty_like(W)
    for i in prange(W.shape[0]):
        exponentials(W, i, ONE, factors)
    parts_W = np.empty((n_parts, W.shape[0], W.shape[1]), float32)
    parts_V = np.empty((n_parts, W.shape[0], W.shape[1]), float32)
    for part in prange(n_parts):
        nade_backward_part(part, W, factors, V, value, weight, end, exact, grad_c, parts_W, parts_V)
    for i in prange(W.shape[0]):
        add_parts(parts_W, i, grad_W)
        add_parts(parts_V, i, grad_V)


# DARN.


DARN_ROWS = 16  # rows drawn side by side, so that W is fetched once for all of them


@_row
def darn_tile(first, r, columns, value, key_low, key_high):
    count, width = min(DARN_ROWS, value.shape[0] - first), value.shape[1]
    logits, noise = np.empty((DARN_ROWS, width), float32), np.empty((DARN_ROWS, width), float32)
    for t in range(count):
        logits[t] = r[(first + t) % r.shape[0]]
        noise[t] = logistic_noise(width, first + t, key_low, key_high)[:width]
    for i in range(width):
        for t in range(count):
            drawn = logits[t, i] > noise[t, i]
            value[first + t, i] = ONE if drawn else ZERO
            if drawn:
                rest, column = logits[t, i + 1 :], columns[i, i + 1 :]  # not sliced, the loop is not vectorised
                for j in range(rest.shape[0]):
                    rest[j] += column[j]


@_kernel
def darn_draw(r, columns, value, key_low, key_high):
    """x_i = 1 with log-odds r_i + sum_j<i W_ij x_j. Column i of W is added to the logits only where x_i is 1."""
    for tile in prange((value.shape[0] + DARN_ROWS - 1) // DARN_ROWS):
        darn_tile(int64(tile) * DARN_ROWS, r, columns, value, key_low, key_high)


@_row
def darn_square_row(triangle, i, block, square):
    start = i * (i - 1) // 2
    for j in range(i):
        square[i, j] = triangle[start + j]
    square[i, i : (i // block + 1) * block] = ZERO


@_kernel
def darn_square(triangle, block, square):
    """The matrix whose strictly lower triangle is given row by row, but for what is right of the blocks that hold it.

    Row i is written up to the end of the block, of so many rows and columns, that the diagonal crosses there.
    """
    for i in prange(square.shape[0]):
        darn_square_row(triangle, int64(i), block, square)


@_row
def darn_triangle_row(square, i, triangle):
    start = i * (i - 1) // 2
    for j in range(i):
        triangle[start + j] = square[i, j]


@_kernel
def darn_triangle(square, triangle):
    """The strictly lower triangle of a matrix, row by row."""
    for i in prange(square.shape[0]):
        darn_triangle_row(square, int64(i), triangle)


class _Announcement(event.Listener):
    """Says, once, that kernels are being compiled: the first run on a machine would else seem to hang.

    It also counts the seconds: kernels compile those that they call, so the outermost is timed.
    """

    said = False
    seconds = 0.0
    _within, _began = 0, 0.0

    def on_start(self, compiling: Any) -> None:
        if not self._within:
            self._began = time.monotonic()
        self._within += 1
        if not self.said and compiling.data["dispatcher"].py_func.__module__ == __name__:
            self.said = True
            print("doubly: compiling the fused kernels, once on this machine …", file=sys.stderr, flush=True)

    def on_end(self, compiling: Any) -> None:
        self._within -= 1
        if not self._within:
            self.seconds += time.monotonic() - self._began


announcement = _Announcement()
event.register("numba:compile", announcement)


# Gibbs sweeps. Every logit l is held as two numbers x, y > 0 with y / x = e^l. With G = e^W, unit k adds to the
# softplus of what it feeds
#   sum_i softplus(l_i + W_ki) - softplus(l_i) = log prod_i (x_i + y_i G_ki) - log prod_i (x_i + y_i)  if it is off, and
#   sum_i softplus(l_i) - softplus(l_i - W_ki) = sum_i W_ki + log prod_i (x_i + y_i) - log prod_i (y_i + x_i G_ki)
# if it is on. This takes no exponential and no difference, and one table of G serves both. To turn the unit over, y or
# x is multiplied by G, and the product that is there already becomes that of x + y.
#
# Where x + y = 1, every factor is between 1 and G, so that every product of some of them is between e^-N and e^P, N and
# P being the sums of the negative and of the positive weights among them: these tell, once for all rows, how many
# factors a product may have. Units that are turned over spend of the same reach, until x and y are normalised again.

GIBBS_ROWS = 4  # rows that go through the units side by side, so that G is fetched once for all of them
GIBBS_LANES = 16  # products side by side, of every 16th factor each; blocks of logits are filled up to whole vectors
GIBBS_GROUP = 32  # the factors of a product are whole groups
# The sum of |W| over a lane, which is in single precision, and P and N of all lanes, which is in double precision: of
# one unit, and of one together with those turned over before it. No weight within reach is so steep that 2^-126 in the
# place of a smaller sigmoid would show.
GIBBS_LANE, GIBBS_ALL_LANES = float32(70), 640.0
GIBBS_SPENT, GIBBS_ALL_SPENT = 85.0, 700.0
GIBBS_FAR = float32(60)  # beyond this a logit has a sigmoid too small to be multiplied on
GIBBS_LEAST = float32(2.0**-87)  # which is about that sigmoid
GIBBS_CERTAIN = float32(3e38)  # beyond any log-odds


LOG_2_HIGH, LOG_2_LOW = float32(355 / 512), float32(-2.12194440e-4)  # the first times a whole number is exact


@_exact
def exp(x):
    """e^x to 1 ulp or so, and 2^-127 or 2^127 beyond these; NaN stays NaN."""
    whole = min(max(x * LOG2_E, float32(-126)), float32(126)) + float32(3 * 2**22) - float32(3 * 2**22)
    rest = (x - whole * LOG_2_HIGH) - whole * LOG_2_LOW
    power = exp2(min(max(rest * LOG2_E, float32(-1)), ONE))
    return power * int32((int32(whole) + int32(127)) << int32(23)).view(float32)


# Two loops in the words of LLVM, which otherwise multiplies the lanes of a product in single precision as it does the
# factors of each: one lane stays in range where all together would not.


def _load(builder, array, place, i):
    """A vector of the array, from place + i on."""
    vector = ir.VectorType(ir.FloatType(), GIBBS_LANES)
    start = builder.gep(array.data, [builder.add(place, i)])
    return builder.load(builder.bitcast(start, vector.as_pointer()), align=4)


def _picked(builder, a, b, lanes):
    """These lanes of two vectors that stand one behind the other."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))


def _over_lanes(builder, vectors, join):
    """Join the lanes of each of 2^n vectors until one is left of each; gives back the vector of these."""
    width, parts = vectors[0].type.count, 1  # every vector has so many parts, one behind the other, of so many lanes
    while width > 1:
        lanes = [part * width + lane for part in range(2 * parts) for lane in range(width // 2)]
        if len(vectors) > 1:
            pairs, parts = list(zip(vectors[::2], vectors[1::2], strict=True)), 2 * parts
        else:
            pairs, lanes = [(vectors[0], vectors[0])], lanes[: len(lanes) // 2]
        width //= 2
        vectors = [
            join(_picked(builder, a, b, lanes), _picked(builder, a, b, [lane + width for lane in lanes]))
            for a, b in pairs
        ]
    return vectors[0]


# (log(1 + t) - t) / t^2, as in `log`
LOG_COEFFICIENTS = (
    0.09226649455, -0.1435230143, 0.1477500808, -0.1656202093, 0.1997445981, -0.2500205851, 0.3333364268, -0.4999999256
)  # fmt: skip


def _log_of_doubles(builder, x):
    """The natural logarithms of positive normal doubles, to single precision; NaN stays NaN."""
    count = x.type.count
    whole, single = ir.VectorType(ir.IntType(64), count), ir.VectorType(ir.FloatType(), count)

    def fused(a, b, c):
        return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))

    bits = builder.bitcast(x, whole)
    exponent = builder.sub(bits, whole([0x3FE6A09E667F3BCD] * count))  # counted from sqrt(1/2)
    exponent = builder.ashr(exponent, whole([52] * count))
    rest = builder.bitcast(builder.sub(bits, builder.shl(exponent, whole([52] * count))), x.type)
    t = builder.fsub(builder.fptrunc(rest, single), single([1.0] * count))
    q = single([LOG_COEFFICIENTS[0]] * count)
    for coefficient in LOG_COEFFICIENTS[1:]:
        q = fused(q, t, single([coefficient] * count))
    of_rest = builder.fpext(fused(builder.fmul(t, t), q, t), x.type)
    exponent = builder.sitofp(builder.trunc(exponent, ir.VectorType(ir.IntType(32), count)), x.type)
    found = fused(exponent, x.type([0.6931471805599453] * count), of_rest)
    return builder.select(builder.fcmp_unordered("uno", x, x), x, found)


def _multiplier(rows: int) -> Any:
    """For so many rows, log prod_i (x_i + y_i G_i); `starts` are where x and y of each row begin."""

    @intrinsic
    def multiply(context, state, factors, g, n, *starts):
        def generate(context, builder, signature, values):
            state, factors = (context.make_array(signature.args[a])(context, builder, values[a]) for a in (0, 1))
            g, n, starts = values[2], values[3], cgutils.unpack_tuple(builder, values[4])
            ones = ir.VectorType(ir.FloatType(), GIBBS_LANES)([1.0] * GIBBS_LANES)
            products = [cgutils.alloca_once_value(builder, ones) for _ in range(rows)]
            with cgutils.for_range_slice(builder, n.type(0), n, n.type(GIBBS_LANES), n.type) as (i, _):
                factor = _load(builder, factors, g, i)
                for row, product in enumerate(products):
                    x, y = (_load(builder, state, starts[2 * row + second], i) for second in (0, 1))
                    scaled = builder.fmul(y, factor, flags=("contract",))
                    term = builder.fadd(x, scaled, flags=("contract",))
                    builder.store(builder.fmul(builder.load(product), term), product)
            wide = ir.VectorType(ir.DoubleType(), GIBBS_LANES)
            lanes = [builder.fpext(builder.load(product), wide) for product in products]
            ends = _log_of_doubles(builder, _over_lanes(builder, lanes, builder.fmul))
            each = [builder.extract_element(ends, ir.IntType(32)(row)) for row in range(rows)]
            return context.make_tuple(builder, signature.return_type, each)

        result = types.UniTuple(types.float64, rows)
        return result(state, factors, g, n, types.StarArgTuple(starts)), generate

    return multiply


_one_row, _four_rows = _multiplier(1), _multiplier(4)


def _largest(context, W, place, n):
    """The largest sum of |W_i| over a lane, from a place in the matrix on."""

    def generate(context, builder, signature, values):
        W, (place, n) = context.make_array(signature.args[0])(context, builder, values[0]), values[1:]

        def larger(a, b):
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        sums = cgutils.alloca_once_value(builder, ir.VectorType(ir.FloatType(), GIBBS_LANES)([0.0] * GIBBS_LANES))
        with cgutils.for_range_slice(builder, n.type(0), n, n.type(GIBBS_LANES), n.type) as (i, _):
            w = _load(builder, W, place, i)
            builder.store(builder.fadd(builder.load(sums), larger(w, builder.fneg(w))), sums)
        return builder.extract_element(_over_lanes(builder, [builder.load(sums)], larger), ir.IntType(32)(0))

    return types.float32(W, place, n), generate


_largest_lane: Any = intrinsic(_largest)


@_apart
def gibbs_exponentials(W, k, first, count, start, end, padded, factors):
    """W_k of a block, filled up with zeros, and G = e^W of it."""
    w, wide, g = W[k, first : first + count], padded[k, start:end], factors[k, start:end]
    for i in range(count):
        wide[i] = w[i]
    wide[count:] = ZERO
    for i in range(wide.shape[0]):
        g[i] = exp(wide[i])


@_apart
def gibbs_sums(W, k, start, end):
    """The sums of W and of |W|."""
    w, total, size = W[k, start:end], 0.0, 0.0
    for i in range(w.shape[0]):
        total += float(w[i])
        size += float(abs(w[i]))
    return total, size


@_uncounted
def gibbs_reach(W, k, start, end):
    """The largest sum of |W| over a lane, and the larger of P and N."""
    total, size = gibbs_sums(W, k, start, end)
    return float(_largest_lane(W, k * W.shape[1] + start, end - start)), (size + abs(total)) / 2


@_uncounted
def within_reach(W, k, start, end):
    """Whether one product may have these factors; not if a weight is NaN."""
    lane, all_lanes = gibbs_reach(W, k, start, end)
    return all_lanes <= GIBBS_ALL_LANES and lane <= GIBBS_LANE


@_apart
def gibbs_groups(W, k, start, last):
    """Where a product that begins here ends: after as many groups as it may have, but one in any case."""
    end = min(start + GIBBS_GROUP, last)
    fits = within_reach(W, k, start, end)
    while fits and end < last and within_reach(W, k, start, min(end + GIBBS_GROUP, last)):
        end = min(end + GIBBS_GROUP, last)
    return end, fits


@_apart
def gibbs_unit(k, W, counts, starts, powers, padded, factors, ends, power_of, steep, gentle, reach, sums):
    """The table of unit k and the ends of its products; a group too steep for any product has one by itself.

    sums_k is the sum of W_k times the powers, but for what is in steep groups, which a gentle unit does not have.
    """
    gentle[k], reach[k], sums[k], first, n = True, 0.0, 0.0, 0, 0
    for block in range(counts.shape[0]):
        start, last = starts[block], starts[block + 1]
        gibbs_exponentials(W, k, first, counts[block], start, last, padded, factors)
        first += counts[block]
        lane, all_lanes = gibbs_reach(padded, k, start, last)
        reach[k] = max(reach[k], lane / GIBBS_SPENT, all_lanes / GIBBS_ALL_SPENT)
        whole = all_lanes <= GIBBS_ALL_LANES and lane <= GIBBS_LANE
        while start < last:
            end, fits = last, True
            if not whole:
                end, fits = gibbs_groups(padded, k, start, last)
            steep[k, n], gentle[k], power_of[k, n] = not fits, gentle[k] and fits, powers[block]
            if fits:
                sums[k] += powers[block] * gibbs_sums(padded, k, start, end)[0]
            ends[k, n], start, n = end, end, n + 1


@_inlined
def softplus(x):
    """log(1 + e^x)."""
    return max(x, ZERO) + log(ONE + exp2(abs(x) * -LOG2_E))


# What follows takes matrices and the places in them: a slice that is handed on is counted, which takes longer than many
# a product.


@_apart
def gibbs_careful(logits, t, W, k, start, end, change):
    """sum_i softplus(l_i + change W_i) - softplus(l_i), where products will not do."""
    a, w, total = logits[t, start:end], W[k, start:end], ZERO
    for i in range(w.shape[0]):
        total += softplus(a[i] + change * w[i]) - softplus(a[i])
    return float(total)


@_apart
def gibbs_start(logits, state, t):
    """x and y of row t from its logits, x + y = 1. Gives back whether one of these is far out."""
    a, n = logits[t], logits.shape[1]
    x, y, far = state[2 * t * n : (2 * t + 1) * n], state[(2 * t + 1) * n : (2 * t + 2) * n], int32(0)
    for i in range(a.shape[0]):
        logit = a[i]
        e = exp_minus_abs(logit)
        larger = ONE / (ONE + e)
        x[i] = larger if logit < ZERO else e * larger
        y[i] = e * larger if logit < ZERO else larger
        far = int32(far | int32(abs(logit) > GIBBS_FAR))
    return far != 0


@_apart
def gibbs_normalise(state, t, n):
    """Make x + y of row t 1 again. Gives back whether a number has become too small to be relied on."""
    x, y, far = state[2 * t * n : (2 * t + 1) * n], state[(2 * t + 1) * n : (2 * t + 2) * n], int32(0)
    for i in range(x.shape[0]):
        share = ONE / (x[i] + y[i])
        a, b = x[i] * share, y[i] * share
        far = int32(far | int32(min(min(x[i], y[i]), min(a, b)) < GIBBS_LEAST))
        x[i] = a
        y[i] = b
    return far != 0


@_apart
def gibbs_turn(state, place, factors, k, n):
    """y, or x of a unit that was on, times G."""
    x, g = state[place : place + n], factors[k * n : (k + 1) * n]
    for i in range(x.shape[0]):
        x[i] *= g[i]


@_apart
def gibbs_add(out, t, change, source, k):
    f, v = out[t], source[k]
    for j in range(v.shape[0]):
        f[j] += change * v[j]


@_apart
def gibbs_follow(logits, t, behind, value, row, W):
    """Bring the logits of a row, which are those of the values `behind`, up to its present ones."""
    for k in range(value.shape[1]):
        if behind[t, k] != value[row, k]:
            gibbs_add(logits, t, value[row, k] - behind[t, k], W, k)
            behind[t, k] = value[row, k]


@_apart
def gibbs_copy(out, t, start, source, row, first, count):
    """Part of a row, in one loop: Numba copies slices number by number."""
    a, b = out[t, start : start + count], source[row, first : first + count]
    for i in range(a.shape[0]):
        a[i] = b[i]


@_apart
def gibbs_load(row, t, value, field, logits, counts, starts, behind, f, a):
    """Value, field and logits of a row."""
    gibbs_copy(behind, t, 0, value, row, 0, value.shape[1])
    gibbs_copy(f, t, 0, field, row % field.shape[0], 0, field.shape[1])
    first, last = 0, 0
    for block in range(counts.shape[0]):
        count, start, last = counts[block], starts[block], starts[block + 1]
        gibbs_copy(a, t, start, logits, row % logits.shape[0], first, count)
        for i in range(start + count, last):
            a[t, i] = ZERO
        first += count


@_row
def aligned(size):
    """Memory that begins with a cache line: a vector that lies across two takes twice as long to load."""
    memory = np.empty(size + GIBBS_LANES, float32)
    skipped = (64 - memory.ctypes.data % 64) % 64 // 4
    return memory[skipped : skipped + size]


# Of each row of a tile: log prod x + y, what has been spent of the reach, and whether x or y is far out.
WHOLE, SPENT, FAR = 0, 1, 2
# Of its units: the values that its logits belong to, their field and their noise.
BEHIND, FIELD, NOISE = 0, 1, 2


@_apart
def gibbs_renew(t, row, k, value, units, status, a, state, W, gentle):
    """Make x and y of a row fit for the products of unit k, and its logits for a unit that is not gentle."""
    if status[SPENT, t] > 0.0:
        far = gibbs_normalise(state, t, W.shape[1])
        status[WHOLE, t], status[SPENT, t], status[FAR, t] = 0.0, 0.0, 1.0 if far else 0.0
    if status[FAR, t] != 0.0 or not gentle[k]:
        gibbs_follow(a, t, units[BEHIND], value, row, W)
    if status[FAR, t] != 0.0:
        status[FAR, t] = 1.0 if gibbs_start(a, state, t) else 0.0


@_apart
def gibbs_flip(t, row, k, here, product, value, units, status, a, state, W, factors, gentle, reach, V):
    """Turn unit k of a row over, with all that follows it."""
    n_fed = W.shape[1]
    value[row, k] = float32(1 - here)
    if gentle[k] and status[FAR, t] == 0.0:
        gibbs_turn(state, (2 * t + 1 - here) * n_fed, factors, k, n_fed)
        status[WHOLE, t], status[SPENT, t] = product, status[SPENT, t] + reach[k]
    else:
        gibbs_follow(a, t, units[BEHIND], value, row, W)
        far = gibbs_start(a, state, t)
        status[WHOLE, t], status[SPENT, t], status[FAR, t] = 0.0, 0.0, 1.0 if far else 0.0
    if V.shape[0] > 0:
        gibbs_add(units[FIELD], t, float32(1 - 2 * here), V, k)


@_uncounted_inlined
def gibbs_settle(
    t, row, k, here, product, log_odds, value, units, status, a, state, W, factors, gentle, reach, sums, V
):  # fmt: skip
    """Draw unit k of a row, `product` being the logarithm of that of the factors of the other value."""
    fed = product - status[WHOLE, t]
    odds = units[FIELD, t, k] - float32(sums[k] - fed if here else fed)
    log_odds[row, k] = odds
    if (odds > units[NOISE, t, k]) != (here != 0):
        gibbs_flip(t, row, k, here, product, value, units, status, a, state, W, factors, gentle, reach, V)


@_apart
def gibbs_alone(
    t, row, k, log_odds, value, units, status, a, state, W, factors, ends, power_of, steep, gentle, reach, sums, V
):  # fmt: skip
    """Draw unit k of one row, whatever its weights are."""
    if not gentle[k] or status[SPENT, t] + reach[k] > 1.0:
        gibbs_renew(t, row, k, value, units, status, a, state, W, gentle)
    n_fed, here = W.shape[1], 1 if value[row, k] != ZERO else 0
    x, y, start, number, product = (2 * t + here) * n_fed, (2 * t + 1 - here) * n_fed, 0, 0, 0.0
    while start < n_fed:
        end = ends[k, number]
        if steep[k, number]:
            found = gibbs_careful(a, t, W, k, start, end, float32(1 - 2 * here))
        else:
            (found,) = _one_row(state, factors, k * n_fed + start, end - start, x + start, y + start)
        product += power_of[k, number] * found
        start, number = end, number + 1
    gibbs_settle(
        t, row, k, here, product, log_odds, value, units, status, a, state, W, factors, gentle, reach, sums, V
    )  # fmt: skip


@_uncounted_inlined
def gibbs_four(
    first, k, log_odds, value, units, status, a, state, W, factors, ends, power_of, gentle, reach, sums, V
):  # fmt: skip
    """Draw a gentle unit of four rows, which fetch G together."""
    n, first_free = W.shape[1], 1.0 - reach[k]
    for t in range(GIBBS_ROWS):
        if status[SPENT, t] > first_free:
            gibbs_renew(t, first + t, k, value, units, status, a, state, W, gentle)
    h, i = 1 if value[first, k] != ZERO else 0, 1 if value[first + 1, k] != ZERO else 0
    j, m = 1 if value[first + 2, k] != ZERO else 0, 1 if value[first + 3, k] != ZERO else 0
    start, number, p, q, r, s = 0, 0, 0.0, 0.0, 0.0, 0.0
    while start < n:
        end, power = ends[k, number], power_of[k, number]
        c, d, e, f = _four_rows(
            state, factors, k * n + start, end - start, h * n + start, (1 - h) * n + start,
            (2 + i) * n + start, (3 - i) * n + start, (4 + j) * n + start, (5 - j) * n + start,
            (6 + m) * n + start, (7 - m) * n + start,
        )  # fmt: skip
        p, q, r, s = p + power * c, q + power * d, r + power * e, s + power * f
        start, number = end, number + 1
    gibbs_settle(0, first, k, h, p, log_odds, value, units, status, a, state, W, factors, gentle, reach, sums, V)
    gibbs_settle(1, first + 1, k, i, q, log_odds, value, units, status, a, state, W, factors, gentle, reach, sums, V)
    gibbs_settle(2, first + 2, k, j, r, log_odds, value, units, status, a, state, W, factors, gentle, reach, sums, V)
    gibbs_settle(3, first + 3, k, m, s, log_odds, value, units, status, a, state, W, factors, gentle, reach, sums, V)


@_uncounted
def gibbs_drawn(chosen, row, k):
    """Whether unit k of a row is to be drawn."""
    return chosen.shape[0] == 0 or chosen[row % chosen.shape[0], k] != 0


@_apart
def gibbs_units(
    first, count, value, chosen, units, status, a, state, W, factors, ends, power_of, steep, gentle, reach, sums, V,
    log_odds
):  # fmt: skip
    """Draw the units of a few rows, one after the other."""
    for k in range(value.shape[1]):
        together = gentle[k] and count == GIBBS_ROWS
        if together and chosen.shape[0] > 0:
            for t in range(GIBBS_ROWS):
                together = together and gibbs_drawn(chosen, first + t, k)
        if together:
            gibbs_four(
                first, k, log_odds, value, units, status, a, state, W, factors, ends, power_of, gentle, reach, sums, V
            )  # fmt: skip
            continue
        for t in range(count):
            if gibbs_drawn(chosen, first + t, k):
                gibbs_alone(
                    t, first + t, k, log_odds, value, units, status, a, state, W, factors, ends, power_of, steep,
                    gentle, reach, sums, V
                )  # fmt: skip
            else:
                log_odds[first + t, k] = float32(np.nan)


@_uncounted
def gibbs_force(noise, t, forced, row):
    """Noise under or over any log-odds: unit k becomes what `forced` has for it."""
    below, wanted = noise[t], forced[row]
    for k in range(below.shape[0]):
        below[k] = -GIBBS_CERTAIN if wanted[k] != ZERO else GIBBS_CERTAIN


@_row
def gibbs_rows(
    first, value, field, logits, chosen, forced, W, factors, ends, power_of, steep, gentle, reach, sums, V, log_odds,
    counts, starts, low, high
):  # fmt: skip
    """Sweep a few rows."""
    count, width, n_fed = min(GIBBS_ROWS, value.shape[0] - first), value.shape[1], W.shape[1]
    state, a = aligned(GIBBS_ROWS * 2 * n_fed), np.empty((GIBBS_ROWS, n_fed), float32)
    units, status = np.empty((3, GIBBS_ROWS, width), float32), np.zeros((3, GIBBS_ROWS), float64)
    for t in range(count):
        gibbs_load(first + t, t, value, field, logits, counts, starts, units[BEHIND], units[FIELD], a)
        if forced.shape[0] > 0:
            gibbs_force(units[NOISE], t, forced, (first + t) % forced.shape[0])
        else:
            noise = logistic_noise(width, first + t, low, high).reshape((1, -1))
            gibbs_copy(units[NOISE], t, 0, noise, 0, 0, width)
        status[FAR, t] = 1.0 if gibbs_start(a, state, t) else 0.0
    gibbs_units(
        first, count, value, chosen, units, status, a, state, W, factors, ends, power_of, steep, gentle, reach, sums,
        V, log_odds
    )  # fmt: skip


@_kernel
def gibbs(value, field, logits, chosen, forced, W, V, log_odds, counts, powers, low, high):
    """Draw every chosen unit of every row once, in order, each given the others; all if `chosen` has no rows.

    Where `forced` has rows, units become what it says in place of being drawn. `field`, `logits`, `chosen` and
    `forced` wrap around. The logits come in blocks of these counts, each with its power, and are padded block by block.
    """
    starts = np.zeros(counts.shape[0] + 1, np.int64)
    for block in range(counts.shape[0]):
        starts[block + 1] = starts[block] + (counts[block] + GIBBS_LANES - 1) // GIBBS_LANES * GIBBS_LANES
    units, length = W.shape[0], starts[counts.shape[0]]
    most = length // GIBBS_GROUP + counts.shape[0]
    flat = aligned(units * length)
    padded, factors = np.empty((units, length), float32), flat.reshape((units, length))
    ends, steep = np.empty((units, most), np.int64), np.empty((units, most), np.bool_)
    power_of, sums = np.empty((units, most), float64), np.empty(units, float64)
    gentle, reach = np.empty(units, np.bool_), np.empty(units, float64)
    for k in prange(units):
        gibbs_unit(
            int64(k), W, counts, starts, powers, padded, factors, ends, power_of, steep, gentle, reach, sums
        )  # fmt: skip
    for tile in prange((value.shape[0] + GIBBS_ROWS - 1) // GIBBS_ROWS):
        gibbs_rows(
            int64(tile) * GIBBS_ROWS, value, field, logits, chosen, forced, padded, flat, ends, power_of, steep, gentle,
            reach, sums, V, log_odds, counts, starts, low, high
        )  # fmt: skip


# Normal variables drawn from a mean and a log standard deviation, and the gradient through the draws. Rows of
# parameters wrap around.

HALF_LOG_2_PI = 0.9189385332046727


@_row
def gaussian_draw_row(row, mu, log_sigma, noise, low, high, value, log_prob):
    m, s = mu[row % mu.shape[0]], log_sigma[row % mu.shape[0]]
    e, z, total = noise[row], value[row], ZERO
    for i in range(m.shape[0]):
        log_s = min(max(s[i], low), high)
        z[i] = m[i] + exp2(log_s * LOG2_E) * e[i]
        total += float32(0.5) * e[i] * e[i] + log_s
    log_prob[row] = float32(-(float(total) + m.shape[0] * HALF_LOG_2_PI))


@_kernel
def gaussian_draw(mu, log_sigma, noise, low, high, value, log_prob):
    """mu + sigma noise, and its log density."""
    for row in prange(noise.shape[0]):
        gaussian_draw_row(int64(row), mu, log_sigma, noise, float32(low), float32(high), value, log_prob)


@_row
def gaussian_draw_backward_row(k, log_sigma, noise, weight, of_value, low, high, of_mu, of_log_sigma):
    s, mean, spread = log_sigma[k], of_mu[k], of_log_sigma[k]
    for i in range(s.shape[0]):
        mean[i], spread[i] = ZERO, ZERO
    weights = ZERO
    for row in range(k, noise.shape[0], log_sigma.shape[0]):
        e, g = noise[row], of_value[row]
        weights += weight[row]
        for i in range(s.shape[0]):
            mean[i] += g[i]
            spread[i] += g[i] * e[i]
    for i in range(s.shape[0]):
        outside = s[i] < low or s[i] > high  # not so NaN
        spread[i] = ZERO if outside else spread[i] * exp2(s[i] * LOG2_E) - weights


@_kernel
def gaussian_draw_backward(log_sigma, noise, weight, of_value, low, high, of_mu, of_log_sigma):
    """Gradients of sum(of_value value) + sum(weight log_prob) with respect to mu and log sigma, summed over draws."""
    for k in prange(log_sigma.shape[0]):
        gaussian_draw_backward_row(
            int64(k), log_sigma, noise, weight, of_value, float32(low), float32(high), of_mu, of_log_sigma
        )
