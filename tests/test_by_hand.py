"""Every algorithm a second time, by hand.

Each rule is read off its paper and written as plain lines over tensors, one client and one minibatch after
another, with gradients that were derived on paper. It shares with the package only the randomness: who is
invited, which rows are drawn, how long Catalyst's walks are. The points after each of five rounds must be
those of `play`, to rounding. The numbers are chosen so that no term of a rule vanishes: clients differ in
data and in size and are met again, minibatches run past the end of an epoch, and stages end inside the run.
"""

from collections import Counter
from math import cos, sin

import pytest
import torch

from fedsaddle import ALGORITHMS, Everybody, Loop, Pair, Quorum, Vectorised, draws, make_study
from fedsaddle.engine.round import play
from fedsaddle.engine.study import begin, points
from fedsaddle.fleet import invite
from fedsaddle.problem import Federation

ROUNDS, SEEDS = 5, (3, 11)
SIZES, INVITED, BATCH = [2, 5, 3, 7, 4], 3, 3
N = len(SIZES)


# --- the problem: f = 1/2 x'Ax + x'By - 1/2 y'Cy + sin(p'x) cos(q'y), with A, B, C, p, q for each row -


def table():
    generator = torch.Generator().manual_seed(5)

    def normal(*shape):
        return torch.randn(sum(SIZES), *shape, generator=generator, dtype=torch.float64)

    return {"A": normal(2) ** 2, "B": normal(2, 3), "C": normal(3) ** 2, "p": normal(2), "q": normal(3)}


ROWS = table()


class Waves:
    federation = Federation(ROWS, torch.tensor(SIZES))

    def init(self, seed):
        x = [cos(seed), sin(seed)]
        y = [sin(2 * seed), cos(3 * seed), sin(4 * seed)]
        return Pair(torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64))

    def loss(self, z, xi):
        (x, y), row = z, xi.rows
        bilinear = (x * (row["B"] @ y)).sum(-1)
        quadratic = (row["A"] * x**2).sum(-1) / 2 - (row["C"] * y**2).sum(-1) / 2
        return xi.mean(quadratic + bilinear + torch.sin(row["p"] @ x) * torch.cos(row["q"] @ y))

    def evaluate(self, z):
        return {}


def gradient(x, y, rows):
    """The means over these rows of df/dx and df/dy."""
    gx, gy = torch.zeros_like(x), torch.zeros_like(y)
    for j in rows:
        A, B, C, p, q = (ROWS[name][j] for name in "ABCpq")
        gx += A * x + B @ y + p * torch.cos(p @ x) * torch.cos(q @ y)
        gy += B.T @ x - C * y - q * torch.sin(p @ x) * torch.sin(q @ y)
    return gx / len(rows), gy / len(rows)


# --- the randomness, as the engine draws it -----------------------------------------------------------


def cohort(seed, t, phase):
    return invite(torch.tensor([seed]), t, phase, N, INVITED, None)[0].tolist()


def everything(i):
    return [sum(SIZES[:i]) + row for row in range(SIZES[i])]


def minibatches(seed, t, phase, i, count):
    key = draws.fold(draws.key(draws.BATCHES, seed, t, phase, i), 0)
    rows = draws.batches(key, torch.tensor(SIZES[i]), count * BATCH, SIZES[i])
    return (sum(SIZES[:i]) + rows).reshape(count, BATCH).tolist()


def sample(seed, t, i):
    """The minibatch that is the same in all phases of a round."""
    rows = draws.batches(draws.key(draws.BATCHES, seed, t, 0, i), torch.tensor(SIZES[i]), BATCH, SIZES[i])
    return (sum(SIZES[:i]) + rows).tolist()


def mean(pairs):
    xs, ys = zip(*pairs, strict=True)
    return sum(xs) / len(xs), sum(ys) / len(ys)


# --- CDMA: Algorithms 1 to 3, Eq. 2 and 3 -------------------------------------------------------------


def cdma_nc(x, y, seed, eta, gamma, K):
    for t in range(ROUNDS):
        ends = []
        for i in cohort(seed, t, 0):
            x_i, y_i = x, y
            for rows in minibatches(seed, t, 0, i, K):
                gx, gy = gradient(x_i, y_i, rows)
                x_i, y_i = x_i - eta * gx, y_i + gamma * gy
            ends.append((x_i, y_i))
        x, y = mean(ends)
        yield x, y


def cdma_one(x, y, seed, eta, gamma, K):
    for t in range(ROUNDS):
        u, v = mean([gradient(x, y, everything(i)) for i in cohort(seed, t, 0)])
        ends = []
        for i in cohort(seed, t, 1):
            x_i, y_i = x, y
            for rows in minibatches(seed, t, 1, i, K):
                gx, gy = gradient(x_i, y_i, rows)
                hx, hy = gradient(x, y, rows)
                x_i, y_i = x_i - eta * (gx + u - hx), y_i + gamma * (gy + v - hy)
            ends.append((x_i, y_i))
        x, y = mean(ends)
        yield x, y


def cdma_ada(x, y, seed, c_eta, c_gamma, c_alpha, rho, K):
    x_old, y_old = x, y
    for t in range(ROUNDS):
        eta, gamma = c_eta / (t + 1) ** rho, c_gamma / (t + 1) ** rho
        alpha = min(1, c_alpha / (t + 1) ** (2 * rho))
        now = mean([gradient(x, y, everything(i)) for i in cohort(seed, t, 0)])
        if t == 0:
            u, v = now
        else:
            old = mean([gradient(x_old, y_old, everything(i)) for i in cohort(seed, t, 0)])
            u = (1 - alpha) * u + now[0] - (1 - alpha) * old[0]
            v = (1 - alpha) * v + now[1] - (1 - alpha) * old[1]
        ends = []
        for i in cohort(seed, t, 1):
            x_i, y_i = x, y
            for rows in minibatches(seed, t, 1, i, K):
                gx, gy = gradient(x_i, y_i, rows)
                hx, hy = gradient(x, y, rows)
                x_i, y_i = x_i - eta * (gx + u - hx), y_i + gamma * (gy + v - hy)
            ends.append((x_i, y_i))
        x_old, y_old = x, y
        x, y = mean(ends)
        yield x, y


# --- the rivals ---------------------------------------------------------------------------------------


def parallel_sgda(x, y, seed, eta, gamma):
    for t in range(ROUNDS):
        gx, gy = mean([gradient(x, y, everything(i)) for i in cohort(seed, t, 0)])
        x, y = x - eta * gx, y + gamma * gy
        yield x, y


def local_sgda_plus(x, y, seed, eta, gamma, s, K):
    for t in range(ROUNDS):
        if t % s == 0:
            x_stale = x
        ends = []
        for i in cohort(seed, t, 0):
            x_i, y_i = x, y
            for rows in minibatches(seed, t, 0, i, K):
                gx, _ = gradient(x_i, y_i, rows)
                _, gy = gradient(x_stale, y_i, rows)
                x_i, y_i = x_i - eta * gx, y_i + gamma * gy
            ends.append((x_i, y_i))
        x, y = mean(ends)
        yield x, y


def local_sgda_plus_release(x, y, seed, eta, gamma, K):
    for t in range(ROUNDS):
        ends = []
        for i in cohort(seed, t, 0):
            x_i, y_i, x_copy = x, y, x
            for rows in minibatches(seed, t, 0, i, K):
                gx, _ = gradient(x_i, y_i, rows)
                _, gy = gradient(x_copy, y_i, rows)
                x_i, y_i = x_i - eta * gx, y_i + gamma * gy
                x_copy = x_i
            ends.append((x_i, y_i))
        x, y = mean(ends)
        yield x, y


def extra_step(x, y, seed, eta_l, K):
    for t in range(ROUNDS):
        ends = []
        for i in cohort(seed, t, 0):
            x_i, y_i = x, y
            drawn = minibatches(seed, t, 0, i, 2 * K)
            for k in range(K):
                gx, gy = gradient(x_i, y_i, drawn[2 * k])
                x_half, y_half = x_i - eta_l * gx, y_i + eta_l * gy
                gx, gy = gradient(x_half, y_half, drawn[2 * k + 1])
                x_i, y_i = x_i - eta_l * gx, y_i + eta_l * gy
            ends.append((x_i, y_i))
        x, y = mean(ends)
        yield x, y


def coda_plus(x, y, seed, eta_l, theta, K_0, decay, K):
    length = max(1, K_0 // K)
    for t in range(ROUNDS):
        if t % length == 0:
            x_s = x
        lr = eta_l / decay ** (t // length)
        ends = []
        for i in cohort(seed, t, 0):
            x_i, y_i = x, y
            for rows in minibatches(seed, t, 0, i, K):
                gx, gy = gradient(x_i, y_i, rows)
                x_i, y_i = x_i - lr * (gx + theta * (x_i - x_s)), y_i + lr * gy
            ends.append((x_i, y_i))
        x, y = mean(ends)
        yield x, y


def codasca(x, y, seed, eta_l, eta_g, theta, K_0, decay, K):
    length = max(1, K_0 // K)
    c_x, c_y = torch.zeros_like(x), torch.zeros_like(y)
    own_x, own_y = [c_x] * N, [c_y] * N
    for t in range(ROUNDS):
        if t % length == 0:
            x_s = x
        lr = eta_l / decay ** (t // length)
        ends, change_x, change_y = [], 0, 0
        for i in cohort(seed, t, 0):
            x_i, y_i = x, y
            for rows in minibatches(seed, t, 0, i, K):
                gx, gy = gradient(x_i, y_i, rows)
                x_i, y_i = (
                    x_i - lr * (gx + c_x - own_x[i] + theta * (x_i - x_s)),
                    y_i + lr * (gy + c_y - own_y[i]),
                )
            ends.append((x_i, y_i))
            new_x = own_x[i] - c_x + (x - x_i) / (K * lr)
            new_y = own_y[i] - c_y + (y_i - y) / (K * lr)
            change_x, change_y = change_x + new_x - own_x[i], change_y + new_y - own_y[i]
            own_x[i], own_y[i] = new_x, new_y
        mean_x, mean_y = mean(ends)
        x, y = (1 - eta_g) * x + eta_g * mean_x, (1 - eta_g) * y + eta_g * mean_y
        c_x, c_y = c_x + change_x / N, c_y + change_y / N
        yield x, y


def codasca_release(x, y, seed, eta_l, eta_g, theta, K_0, decay, K):
    length = max(1, K_0 // K)
    c, own = torch.zeros_like(x), [torch.zeros_like(x)] * N
    for t in range(ROUNDS):
        if t % length == 0:
            x_s = x
        lr = eta_l / decay ** (t // length)
        ends, change = [], 0
        for i in cohort(seed, t, 0):
            x_i, y_i = x, y
            for rows in minibatches(seed, t, 0, i, K):
                gx, gy = gradient(x_i, y_i, rows)
                x_i, y_i = x_i - lr * (gx + c - own[i] + theta * (x_i - x_s)), y_i + lr * gy
            ends.append((x_i, y_i))
            new = own[i] - c + (x - x_i) / (K * lr)
            change, own[i] = change + new - own[i], new
        mean_x, mean_y = mean(ends)
        x, y = (1 - eta_g) * x + eta_g * mean_x, (1 - eta_g) * y + eta_g * mean_y
        c = c + change / N
        yield x, y


def catalyst_scaffold_s(x, y, seed, eta_l, eta_g, theta, K_0, K):
    length = max(1, K_0 // K)
    for t in range(ROUNDS):
        if t % length == 0:
            x_s, y_s = x, y
        u, v = mean([gradient(x, y, everything(i)) for i in cohort(seed, t, 0)])
        ends = []
        for i in cohort(seed, t, 1):
            x_i, y_i = x, y
            for rows in minibatches(seed, t, 1, i, walk(seed, t, K)):
                gx, gy = gradient(x_i, y_i, rows)
                hx, hy = gradient(x, y, rows)
                x_i, y_i = (
                    x_i - eta_l * (gx - hx + u + theta * (x_i - x_s)),
                    y_i + eta_l * (gy - hy + v - theta * (y_i - y_s)),
                )
            ends.append((x_i, y_i))
        mean_x, mean_y = mean(ends)
        x, y = x + eta_g / eta_l * (mean_x - x), y + eta_g / eta_l * (mean_y - y)
        yield x, y


# --- newer rules --------------------------------------------------------------------------------------


def ends_of_walks(x, y, seed, t, phase, eta, gamma, K):
    """Plain walks, and the mean of their ends."""
    ends = []
    for i in cohort(seed, t, phase):
        x_i, y_i = x, y
        for rows in minibatches(seed, t, phase, i, K):
            gx, gy = gradient(x_i, y_i, rows)
            x_i, y_i = x_i - eta * gx, y_i + gamma * gy
        ends.append((x_i, y_i))
    return mean(ends)


def fsgda(x, y, seed, eta, gamma, eta_g, gamma_g, K):
    for t in range(ROUNDS):
        mean_x, mean_y = ends_of_walks(x, y, seed, t, 0, eta, gamma, K)
        x, y = (1 - eta_g) * x + eta_g * mean_x, (1 - gamma_g) * y + gamma_g * mean_y
        yield x, y


def fess_gda(x, y, seed, eta, gamma, p, beta, eta_g, gamma_g, K):
    centre = x
    for t in range(ROUNDS):
        mean_x, mean_y = ends_of_walks(x, y, seed, t, 0, eta, gamma, K)
        x, y = (
            x + eta_g * (mean_x - x) - eta * eta_g * K * p * (x - centre),
            y + gamma_g * (mean_y - y),
        )
        centre = (1 - beta) * centre + beta * x
        yield x, y


def momentum_local_sgda(x, y, seed, eta, gamma, b, K):
    for t in range(ROUNDS):
        ends = []
        for i in cohort(seed, t, 0):
            x_i, y_i, m_x, m_y = x, y, 0, 0
            for rows in minibatches(seed, t, 0, i, K):
                gx, gy = gradient(x_i, y_i, rows)
                m_x, m_y = (1 - b) * m_x + b * gx, (1 - b) * m_y + b * gy
                x_i, y_i = x_i - eta * m_x, y_i + gamma * m_y
            ends.append((x_i, y_i))
        x, y = mean(ends)
        yield x, y


def fedavg_m(x, y, seed, eta, gamma, b, rho, K):
    for t in range(ROUNDS):
        e, g = eta / (t + 1) ** rho, gamma / (t + 1) ** rho
        ends = []
        for i in cohort(seed, t, 0):
            x_i, y_i = x, y
            for rows in minibatches(seed, t, 0, i, K):
                gx, gy = gradient(x_i, y_i, rows)
                if t:
                    gx, gy = b * gx + (1 - b) * u, b * gy + (1 - b) * v  # noqa: F821
                x_i, y_i = x_i - e * gx, y_i + g * gy
            ends.append((x_i, y_i))
        (mean_x, mean_y), x_old, y_old = mean(ends), x, y
        x, y = mean_x, mean_y
        u, v = (x_old - x) / (K * e), (y - y_old) / (K * g)  # noqa: F841
        yield x, y


def sagda(x, y, seed, eta, gamma, eta_g, gamma_g, K, stored=lambda seed, t, i: everything(i)):
    for t in range(ROUNDS):
        u, v = mean([gradient(x, y, stored(seed, t, i)) for i in cohort(seed, t, 0)])
        ends = []
        for i in cohort(seed, t, 1):
            x_i, y_i = x, y
            v_x, v_y = gradient(x, y, stored(seed, t, i))
            for rows in minibatches(seed, t, 1, i, K):
                gx, gy = gradient(x_i, y_i, rows)
                x_i, y_i = x_i - eta * (gx + u - v_x), y_i + gamma * (gy + v - v_y)
            ends.append((x_i, y_i))
        mean_x, mean_y = mean(ends)
        x, y = x + eta_g * (mean_x - x), y + gamma_g * (mean_y - y)
        yield x, y


def sagda_minibatch(x, y, seed, **hyper):
    return sagda(x, y, seed, stored=sample, **hyper)


def fedgda_gt(x, y, seed, eta_l, K):
    for t in range(ROUNDS):
        u, v = mean([gradient(x, y, everything(i)) for i in cohort(seed, t, 0)])
        ends = []
        for i in cohort(seed, t, 1):
            x_i, y_i = x, y
            v_x, v_y = gradient(x, y, everything(i))
            for _ in range(K):
                gx, gy = gradient(x_i, y_i, everything(i))
                x_i, y_i = x_i - eta_l * (gx - v_x + u), y_i + eta_l * (gy - v_y + v)
            ends.append((x_i, y_i))
        x, y = mean(ends)
        yield x, y


def adafgda(x, y, seed, c_eta, c_gamma, c_alpha, rho, K, decay=None, floor=None):
    """Without a decay, FGDA."""
    v_x, v_y, s_x, s_y = torch.zeros_like(x), torch.zeros_like(y), torch.ones_like(x), torch.ones_like(y)

    def over(v, s):
        return v if decay is None else v / (s.sqrt() + floor)

    for t in range(ROUNDS):
        eta, gamma = c_eta / (t + 1) ** rho, c_gamma / (t + 1) ** rho
        alpha = 1 if t == 0 else min(1, c_alpha / (t + 1) ** (2 * rho))
        ends, estimates = [], []
        for i in cohort(seed, t, 0):
            x_i, y_i, p, q = x, y, v_x, v_y
            for rows in minibatches(seed, t, 0, i, K):
                old_x, old_y = gradient(x_i, y_i, rows)
                x_i, y_i = x_i - eta * over(p, s_x), y_i + gamma * over(q, s_y)
                new_x, new_y = gradient(x_i, y_i, rows)
                p, q = new_x + (1 - alpha) * (p - old_x), new_y + (1 - alpha) * (q - old_y)
            ends.append((x_i, y_i))
            estimates.append((p, q))
        (x, y), (v_x, v_y) = mean(ends), mean(estimates)
        if decay is not None:
            s_x, s_y = decay * s_x + (1 - decay) * v_x**2, decay * s_y + (1 - decay) * v_y**2
        x, y = x - eta * over(v_x, s_x), y + gamma * over(v_y, s_y)
        yield x, y


def fednest(x, y, seed, eta, gamma, T, K):
    for t in range(ROUNDS):
        for inner in range(T):
            _, v = mean([gradient(x, y, everything(i)) for i in cohort(seed, t, 2 * inner)])
            ends = []
            for i in cohort(seed, t, 2 * inner + 1):
                y_i = y
                for rows in minibatches(seed, t, 2 * inner + 1, i, K):
                    y_i = y_i + gamma * (gradient(x, y_i, rows)[1] + v - gradient(x, y, rows)[1])
                ends.append((x, y_i))
            _, y = mean(ends)
        u, _ = mean([gradient(x, y, everything(i)) for i in cohort(seed, t, 2 * T)])
        ends = []
        for i in cohort(seed, t, 2 * T + 1):
            x_i = x
            for rows in minibatches(seed, t, 2 * T + 1, i, K):
                x_i = x_i - eta * (gradient(x_i, y, rows)[0] + u - gradient(x, y, rows)[0])
            ends.append((x_i, y))
        x, _ = mean(ends)
        yield x, y


def fed_norm_sgda(x, y, seed, eta, gamma, eta_g, gamma_g, K, steps=None, plus=None):
    """Client i makes steps[i] steps, or K. With `plus`, y ascends against an x of that many rounds."""
    x_old = x
    for t in range(ROUNDS):
        ways, made = [], []
        for i in cohort(seed, t, 0):
            n = K if steps is None else steps[i]
            x_i, y_i = x, y
            for rows in minibatches(seed, t, 0, i, n):
                gx, gy = gradient(x_i, y_i, rows)
                if plus is not None:
                    _, gy = gradient(x_old, y_i, rows)
                x_i, y_i = x_i - eta * gx, y_i + gamma * gy
            ways.append(((x_i - x) / n, (y_i - y) / n))
            made.append(n)
        (along_x, along_y), n = mean(ways), sum(made) / len(made)
        x, y = x + n * eta_g * along_x, y + n * gamma_g * along_y
        if plus is not None and (t + 1) % plus == 0:
            x_old = x
        yield x, y


def fed_norm_sgda_plus(x, y, seed, eta, gamma, eta_g, gamma_g, s, K):
    return fed_norm_sgda(x, y, seed, eta, gamma, eta_g, gamma_g, K, plus=s)


def drfa(x, y, seed, eta, gamma, K):
    for t in range(ROUNDS):
        place = int(K * draws.uniform(draws.key(draws.STEPS, seed, t, 0), 1).item())
        ends, snaps = [], []
        for i in cohort(seed, t, 0):
            points = [x]
            for rows in minibatches(seed, t, 0, i, K):
                points.append(points[-1] - eta * gradient(points[-1], y, rows)[0])
            ends.append(points[-1])
            snaps.append(points[1 + place])
        x, snap = sum(ends) / len(ends), sum(snaps) / len(snaps)
        _, along = mean([gradient(snap, y, everything(i)) for i in cohort(seed, t, 1)])
        y = y + K * gamma * along
        yield x, y


def server_eg(x, y, seed, eta, gamma, K):
    for t in range(ROUNDS):
        x_ahead, y_ahead = ends_of_walks(x, y, seed, t, 0, eta, gamma, K)
        x_end, y_end = ends_of_walks(x_ahead, y_ahead, seed, t, 1, eta, gamma, K)
        x, y = x + (x_end - x_ahead), y + (y_end - y_ahead)
        yield x, y


def server_ogda(x, y, seed, eta, gamma, K):
    for t in range(ROUNDS):
        x_end, y_end = ends_of_walks(x, y, seed, t, 0, eta, gamma, K)
        p, q = x_end - x, y_end - y
        if t == 0:
            p_old, q_old = p, q
        x, y = x + 2 * p - p_old, y + 2 * q - q_old
        p_old, q_old = p, q
        yield x, y


def fedualex(x, y, seed, eta_l, eta_g, K):
    x_0, y_0, down, up = x, y, torch.zeros_like(x), torch.zeros_like(y)
    for t in range(ROUNDS):
        sums = []
        for i in cohort(seed, t, 0):
            s_x, s_y = down, up
            drawn = minibatches(seed, t, 0, i, 2 * K)
            for k in range(K):
                gx, gy = gradient(x_0 - s_x, y_0 + s_y, drawn[2 * k])
                hx, hy = gradient(x_0 - s_x - eta_l * gx, y_0 + s_y + eta_l * gy, drawn[2 * k + 1])
                s_x, s_y = s_x + eta_l * hx, s_y + eta_l * hy
            sums.append((s_x, s_y))
        mean_x, mean_y = mean(sums)
        down, up = down + eta_g * (mean_x - down), up + eta_g * (mean_y - up)
        yield x_0 - down, y_0 + up


def proxskip_vip(x, y, seed, eta_l, K):
    """Whom a coin calls, all of them in turn learn where the others are: at their next visit."""
    h_x, h_y = [torch.zeros_like(x)] * N, [torch.zeros_like(y)] * N
    end_x, end_y = [x] * N, [y] * N
    for t in range(ROUNDS):
        chance = draws.uniform(draws.key(draws.STEPS, seed, t, 0), 1).item()
        ends = []
        for i in cohort(seed, t, 0):
            h_x[i] = h_x[i] + (x - end_x[i]) / (K * eta_l)
            h_y[i] = h_y[i] - (y - end_y[i]) / (K * eta_l)
            x_i, y_i = x, y
            for rows in minibatches(seed, t, 0, i, steps_of_catalyst(K)(chance)):
                gx, gy = gradient(x_i, y_i, rows)
                x_i, y_i = x_i - eta_l * (gx - h_x[i]), y_i + eta_l * (gy - h_y[i])
            end_x[i], end_y[i] = x_i, y_i
            ends.append((x_i, y_i))
        x, y = mean(ends)
        yield x, y


def steps_of_catalyst(K):
    return ALGORITHMS["catalyst-scaffold-s"].rule(eta_l=0.1, eta_g=0.1, K=K).phases()[1].steps


def walk(seed, t, K):
    """How long the walks of a round are, the same for all its clients."""
    return steps_of_catalyst(K)(draws.uniform(draws.key(draws.STEPS, seed, t, 1), 1).item())


# --- the comparison -----------------------------------------------------------------------------------

CASES = [
    ("cdma-nc", cdma_nc, {"eta": 0.11, "gamma": 0.07, "K": 3}),
    ("cdma-one", cdma_one, {"eta": 0.11, "gamma": 0.07, "K": 3}),
    # alpha_0 < 1, which the first round must ignore
    ("cdma-ada", cdma_ada, {"c_eta": 0.11, "c_gamma": 0.07, "c_alpha": 0.8, "rho": 0.3, "K": 3}),
    # alpha is cut at 1 in two rounds
    ("cdma-ada", cdma_ada, {"c_eta": 0.11, "c_gamma": 0.07, "c_alpha": 1.8, "rho": 0.4, "K": 3}),
    ("parallel-sgda", parallel_sgda, {"eta": 0.11, "gamma": 0.07}),
    ("local-sgda-plus", local_sgda_plus, {"eta": 0.11, "gamma": 0.07, "s": 1, "K": 3}),
    ("local-sgda-plus", local_sgda_plus, {"eta": 0.11, "gamma": 0.07, "s": 2, "K": 3}),
    ("local-sgda-plus-release", local_sgda_plus_release, {"eta": 0.11, "gamma": 0.07, "K": 3}),
    ("extra-step", extra_step, {"eta_l": 0.09, "K": 3}),
    # stages of int(8 / 3) = 2 rounds, and stages of one round, the least there is
    ("coda-plus", coda_plus, {"eta_l": 0.12, "theta": 0.6, "K_0": 8, "decay": 1.7, "K": 3}),
    ("coda-plus", coda_plus, {"eta_l": 0.12, "theta": 0.6, "K_0": 2, "decay": 1.1, "K": 3}),
    ("codasca", codasca, {"eta_l": 0.12, "eta_g": 1.3, "theta": 0.6, "K_0": 8, "decay": 1.7, "K": 3}),
    ("codasca", codasca, {"eta_l": 0.12, "eta_g": 0.8, "theta": 0.6, "K_0": 2, "decay": 1.1, "K": 3}),
    (
        "codasca-release",
        codasca_release,
        {"eta_l": 0.12, "eta_g": 1.3, "theta": 0.6, "K_0": 8, "decay": 1.7, "K": 3},
    ),
    (
        "catalyst-scaffold-s",
        catalyst_scaffold_s,
        {"eta_l": 0.1, "eta_g": 0.13, "theta": 0.6, "K_0": 8, "K": 3},
    ),
    (
        "catalyst-scaffold-s",
        catalyst_scaffold_s,
        {"eta_l": 0.1, "eta_g": 0.08, "theta": 0.6, "K_0": 2, "K": 3},
    ),
    ("fsgda", fsgda, {"eta": 0.11, "gamma": 0.07, "eta_g": 1.2, "gamma_g": 0.7, "K": 3}),
    (
        "fess-gda",
        fess_gda,
        {"eta": 0.11, "gamma": 0.07, "p": 0.4, "beta": 0.3, "eta_g": 1.2, "gamma_g": 0.7, "K": 3},
    ),
    ("momentum-local-sgda", momentum_local_sgda, {"eta": 0.11, "gamma": 0.07, "b": 0.6, "K": 3}),
    ("fedavg-m", fedavg_m, {"eta": 0.11, "gamma": 0.07, "b": 0.6, "rho": 0.3, "K": 3}),
    ("sagda", sagda, {"eta": 0.11, "gamma": 0.07, "eta_g": 1.2, "gamma_g": 0.7, "K": 3}),
    (
        "sagda-minibatch",
        sagda_minibatch,
        {"eta": 0.11, "gamma": 0.07, "eta_g": 1.2, "gamma_g": 0.7, "K": 3},
    ),
    ("fedgda-gt", fedgda_gt, {"eta_l": 0.09, "K": 3}),
    ("fgda", adafgda, {"c_eta": 0.11, "c_gamma": 0.07, "c_alpha": 0.8, "rho": 0.3, "K": 3}),
    (
        "adafgda",
        adafgda,
        {"c_eta": 0.05, "c_gamma": 0.04, "c_alpha": 0.8, "rho": 0.3, "K": 3, "decay": 0.7, "floor": 0.05},
    ),
    ("fednest", fednest, {"eta": 0.11, "gamma": 0.07, "T": 1, "K": 3}),
    ("fednest", fednest, {"eta": 0.11, "gamma": 0.07, "T": 2, "K": 3}),
    ("fed-norm-sgda", fed_norm_sgda, {"eta": 0.11, "gamma": 0.07, "eta_g": 1.2, "gamma_g": 0.7, "K": 3}),
    (
        "fed-norm-sgda-plus",
        fed_norm_sgda_plus,
        {"eta": 0.11, "gamma": 0.07, "eta_g": 1.2, "gamma_g": 0.7, "s": 2, "K": 3},
    ),
    ("drfa", drfa, {"eta": 0.11, "gamma": 0.07, "K": 3}),
    ("afl", parallel_sgda, {"eta": 0.11, "gamma": 0.07}),
    ("server-eg", server_eg, {"eta": 0.11, "gamma": 0.07, "K": 3}),
    ("server-ogda", server_ogda, {"eta": 0.11, "gamma": 0.07, "K": 3}),
    ("fedualex", fedualex, {"eta_l": 0.09, "eta_g": 1.2, "K": 3}),
    ("proxskip-vip", proxskip_vip, {"eta_l": 0.09, "K": 3}),
]


@pytest.mark.parametrize("ask", [Loop, Vectorised])
@pytest.mark.parametrize(("name", "by_hand", "hyper"), CASES)
def test_play_is_the_rule_written_by_hand(name, by_hand, hyper, ask):
    entry, problem = ALGORITHMS[name], Waves()
    study = make_study(
        problem,
        entry.rule(**hyper, **entry.fixed),
        seeds=SEEDS,
        quorum=Quorum(invite=INVITED),
        fleet=Everybody(),
        batch=BATCH,
        executor=ask(),
    )
    lanes = begin(study)
    rounds = zip(*(by_hand(*problem.init(seed), seed, **hyper) for seed in SEEDS), strict=True)
    for t, expected in enumerate(rounds):
        lanes, events = play(study, lanes, t)
        assert not events
        for z, (x, y) in zip(points(lanes.server), expected, strict=True):
            torch.testing.assert_close(z, Pair(x, y), rtol=0, atol=1e-12)


def test_every_algorithm_is_written_by_hand():
    assert {name for name, _, _ in CASES} == set(ALGORITHMS)


@pytest.mark.parametrize("K", [2, 3, 12])
def test_catalyst_walks_are_geometric_with_mean_k(K):
    n, steps = 20_000, steps_of_catalyst(K)
    found = Counter(steps((j + 0.5) / n) for j in range(n))
    for k in range(1, 6 * K):
        assert found[k] / n == pytest.approx((1 - 1 / K) ** (k - 1) / K, abs=2 / n)
