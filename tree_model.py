#!/usr/bin/env python3
"""A tree of kofn switches, as a small executable model: leaf, root, hosts, controller; and what explores it.

    python model.py exhaustive [NAME ...]   every interleaving of small settings
    python model.py rules                   each rule left out in turn: the counterexample
    python model.py random [SECONDS [SEED]] deep random runs: 3 leaves x 3 workers, merged parts, bags that lose and repeat

Exhaustive: the network is the *set* of all packets ever sent.  Any of them may be delivered at any moment, any number of
times, in any order, or never: unbounded loss, duplication and reordering on every link at once.  A host that repeats a
packet adds nothing to the set.  Safety is checked at every step; for liveness a fair, lossless run (every live host repeats
once a round) must end from every reachable state of the nodes, for every set of live workers with k or more of them.

One slot of one switch is one component.  Values: each contribution has a digit of 6 bits, to which attempt t adds 4**t; so a
sum shows what was added how often, and in which attempt (a host encodes anew after FORMAT_MISMATCH).
"""
import os, random, sys, time
from collections import deque
from itertools import combinations

C, PULL, INC, ASK, RES, ACK, FMT, STALE = "C", "PULL", "INC", "ASK", "RES", "ACK", "FMT", "STALE"
EMPTY, OPEN, DONE, GONE = 0, 1, 2, 3
# what each packet is:            (kind, to, gen, blk, ...)
#   C     host -> leaf            c, attempt, fmt                 CONTRIBUTE
#   PULL  host -> leaf            w                               PULL
#   INC   leaf -> root            rack, set, val, fmt             CONTRIBUTE of a leaf; members = set
#   ASK   leaf -> root            rack                            PULL of a leaf
#   RES   root -> leaf -> host    result                          RESULT, LATE
#   ACK   root -> leaf            members so far (rack's), fmt    ADDED (new kind)
#   FMT   root -> leaf -> host    members so far (rack's), fmt    FORMAT_MISMATCH
#   STALE root -> leaf -> host                                    STALE


class Setting:
    def __init__(self, racks=(2, 2), k=(2,), blocks=2, slots=1, window=1, ring=2, levels=None, early=True, merged=(), fmts=None,
                 root_restarts=0, leaf_restarts=0, leaf_regroups=0, without=(), peers=True, s2=False):
        self.racks, self.k, self.blocks, self.slots, self.window, self.ring = racks, tuple(k), blocks, slots, window, ring
        self.early, self.merged, self.without = early, frozenset(merged), frozenset(without)
        self.n = sum(racks)
        self.rack_of = [r for r, m in enumerate(racks) for _ in range(m)]
        self.workers_of = [[w for w in range(self.n) if self.rack_of[w] == r] for r in range(len(racks))]
        self.levels = levels if levels is not None else [set() for _ in racks]  # the complete rack always goes up
        self.fmts = fmts or [0] * self.n
        self.root_restarts, self.leaf_restarts, self.leaf_regroups = root_restarts, leaf_restarts, leaf_regroups
        self.counted = sum(1 << 2 * w for w in range(self.n))
        self.rack_mask = [sum(3 << 2 * w for w in ws) for ws in self.workers_of]
        self.everyone = [sum(1 << 2 * w for w in ws) for ws in self.workers_of]
        self.quota = list(racks)
        self.s2, self.peers = s2, peers
        R = len(racks)
        self.host = list(range(self.n))
        self.leaf = lambda r, blk: self.n + r * self.slots + blk % self.slots
        self.root = lambda blk: self.n + R * self.slots + blk % self.slots
        self.parts = [(0, 1) if w in self.merged else (0,) for w in range(self.n)]


def count(x):
    return x.bit_count()


def unit(c, attempt):
    return 4**attempt << 6 * c


def is_sum_of(val, members):
    """Each member's digit is one attempt once, all others are 0."""
    c = 0
    while val or members:
        if (val & 63) not in ((1, 4, 16) if members & 1 else (0,)):
            return False
        val >>= 6; members >>= 1; c += 1
    return True


# ---------------------------------------------------------------- leaf: one slot
# (gen, blk, status, fmt, final, taken, acked, at, frozen, ring, result, has)
#   taken: contributions that are in a buffer, or in the root's sum; acked: the latter; at: buffer that takes the next
#   contribution; frozen: bitmap of buffers that were sent; ring: (set, val) of each buffer
def leaf_empty(s, gen):
    return (gen, 0, EMPTY, 0, 0, 0, 0, 0, 0, ((0, 0),) * s.ring, None)


def send_buffer(s, r, slot, i, out):
    gen, blk, fmt, ring = slot[0], slot[1], slot[3], slot[9]
    out.append((INC, s.root(blk), gen, blk, r, ring[i][0], ring[i][1], fmt))


def freeze(s, r, slot, out):
    gen, blk, status, fmt, final, taken, acked, at, frozen, ring, result = slot
    new = list(ring)
    new[at ^ 1] = (0, 0)
    send_buffer(s, r, slot, at, out)
    return (gen, blk, status, fmt, final, taken, acked, at ^ 1, 1 << at, tuple(new), result)


def urge(s, r, slot, out, m=None):
    """A host repeats itself, or asks: one packet goes up."""
    gen, blk, status, fmt, final, taken, acked, at, frozen, ring, result = slot
    if m is not None and m[0] == C:
        bit = 1 << m[4]
        if taken & bit and not (acked | ring[0][0] | ring[1][0]) & bit and "pass" not in s.without:
            out.append((INC, s.root(blk), gen, blk, r, bit, unit(m[4], m[5]), m[6]))
            return slot
    if frozen >> (at ^ 1) & 1 and "resend" not in s.without:
        send_buffer(s, r, slot, at ^ 1, out)
        return slot
    if s.early and "early" not in s.without and ring[at][0]:
        return freeze(s, r, slot, out)
    if "ask" not in s.without:
        out.append((ASK, s.root(blk), gen, blk, r))
    return slot


def leaf_below(s, r, slot, m, out):
    kind, _, g, b = m[:4]
    gen, blk, status, fmt, final, taken, acked, at, frozen, ring, result = slot
    who = m[4] // 2 if kind == C else m[4]
    if g != gen:
        return slot
    if b < blk:
        out.append((STALE, who, gen, b))
        return slot
    if b > blk:
        if kind == PULL:
            if "ask" not in s.without:
                out.append((ASK, s.root(b), gen, b, r))
            return slot
        slot = (gen, b, OPEN, m[6], 0, 0, 0, 0, 0, ((0, 0),) * s.ring, None)
    elif status == DONE:
        out.append((RES, who, gen, blk, result))
        return slot
    elif status == GONE:
        out.append((STALE, who, gen, blk))
        return slot
    if kind == PULL:
        return urge(s, r, slot, out, m)
    gen, blk, status, fmt, final, taken, acked, at, frozen, ring, result = slot
    _, _, _, _, c, attempt, f = m
    bit = 1 << c
    if taken & bit and "taken" not in s.without:
        return urge(s, r, slot, out, m)
    if f != fmt:
        if final or "final" in s.without:
            out.append((FMT, who, gen, blk, 0, fmt))
            return slot
        if "probe" in s.without:
            return slot
        return urge(s, r, slot, out, m) if frozen >> (at ^ 1) & 1 or not ring[at][0] else freeze(s, r, slot, out)
    if not bit & s.counted and count(taken & s.rack_mask[r] & ~s.counted) >= s.quota[r]:
        return slot  # FULL
    ring = ring[:at] + ((ring[at][0] | bit, ring[at][1] + unit(c, attempt)),) + ring[at + 1:]
    taken |= bit
    slot = (gen, blk, status, fmt, final, taken, acked, at, frozen, ring, result)
    full = taken & s.everyone[r] == s.everyone[r]
    if bit & s.counted and (full or count(taken & s.counted) in s.levels[r]):
        slot = freeze(s, r, slot, out)
    return slot


def hear(s, r, slot, members, root_fmt):
    """What of this rack is in the root's sum, which is in this format."""
    gen, blk, status, fmt, final, taken, acked, at, frozen, ring, result = slot
    if root_fmt != fmt:
        if "reset" in s.without:
            return slot
        return (gen, blk, OPEN, root_fmt, 1, members, members, 0, 0, ((0, 0),) * s.ring, None)  # all of it was refused
    acked |= members
    if "learn" not in s.without:
        taken |= members
    new = list(ring)
    for i, (held, _) in enumerate(ring):
        if held & ~acked == 0 and frozen >> i & 1:
            if "recycle" in s.without:
                continue
            new[i] = (0, 0)
            frozen &= ~(1 << i)
        elif held & acked and "discard" not in s.without:  # the root takes it no more: hosts bring the rest again
            taken &= ~(held & ~acked)
            new[i] = (0, 0)
            frozen &= ~(1 << i)
    return (gen, blk, status, fmt, 1, taken, acked, at, frozen, tuple(new), result)


def leaf_above(s, r, slot, m, out):
    kind, _, g, b = m[:4]
    gen, blk, status, fmt, final, taken, acked, at, frozen, ring, result = slot
    if g != gen or b < blk:
        return slot
    if kind == RES:
        if b == blk and status == DONE:
            return slot
        for w in s.workers_of[r]:
            out.append((RES, w, gen, b, m[4]))
        return (gen, b, DONE, 0, 1, 0, 0, 0, 0, ((0, 0),) * s.ring, m[4])
    if b != blk or status != OPEN:
        return slot
    if kind == STALE:
        return slot if "gone" in s.without else (gen, blk, GONE, 0, 1, 0, 0, 0, 0, ((0, 0),) * s.ring, None)
    return hear(s, r, slot, m[4], m[5])


def leaf_in(s, r, slot, m, out):
    new = (leaf_below if m[0] in (C, PULL) else leaf_above)(s, r, slot, m, out)
    if new is not slot and new[2] == OPEN:
        held = 0
        for i, (members, val) in enumerate(new[9]):
            assert is_sum_of(val, members), "a leaf's increment is not the sum of its members"
            assert not held & members, "a contribution is in two increments"
            held |= members
    return new


# ---------------------------------------------------------------- root: one slot
# (gen, k, blk, done, members, val, fmt)
def root_empty(s, gen, k):
    return (gen, k, 0, 0, 0, 0, 0)


def root_in(s, slot, m, out):
    gen, k, blk, done, members, val, fmt = slot
    kind, _, g, b, r = m[:5]
    leaf = s.leaf(r, b)
    if g != gen or gen == 0:
        return slot
    if b < blk:
        out.append((STALE, leaf, gen, b))
        return slot
    if b > blk:
        if kind == ASK:
            return slot
        blk, done, members, val, fmt = b, 0, m[5], m[6], m[7]
    elif done:
        if "late" not in s.without:
            out.append((RES, leaf, gen, b, (members, val, fmt)))
        return slot
    elif kind == ASK:
        if "ask-closes" in s.without:
            return slot
    elif m[5] & ~members == 0:
        pass  # DUPLICATE
    elif m[7] != fmt:
        out.append((FMT, leaf, gen, b, members & s.rack_mask[r], fmt))
        return slot
    elif m[5] & members and "overlap" not in s.without:
        pass  # OVERLAP: nothing is added
    else:
        members, val = members | m[5], val + m[6]
    assert is_sum_of(val, members), "the root's sum is not the sum of its members"
    if count(members & s.counted) >= k:
        done = 1
        for rack in range(len(s.racks)):
            out.append((RES, s.leaf(rack, b), gen, b, (members, val, fmt)))
    else:
        out.append((ACK, leaf, gen, b, members & s.rack_mask[r], fmt))
    return (gen, k, blk, done, members, val, fmt)


# ---------------------------------------------------------------- host
# (gen, regrouping, results, attempts): by block its result or None; by block the (attempt, fmt) of its parts, stale: asked
def host_new(s, w):
    return (1, 0, (None,) * s.blocks, ((0, s.fmts[w]),) * s.blocks)


def may_send(s, results, q):
    return (q <= s.window or results[q - s.window - 1] is not None) and (not s.s2 or q <= s.slots or results[q - s.slots - 1] is not None)


def host_says(s, w, h, out, pull=1):
    gen, regrouping, results, attempts = h
    if regrouping:
        return
    for q in range(1, s.blocks + 1):
        if results[q - 1] is None and may_send(s, results, q):
            for part in s.parts[w]:
                out.append((C, s.leaf(s.rack_of[w], q), gen, q, 2 * w + part, *attempts[q - 1]))
            if pull:
                out.append((PULL, s.leaf(s.rack_of[w], q), gen, q, w if pull is True else s.workers_of[s.rack_of[w]][0]))


def close(s, w, h, q, result, whole=True):
    gen, regrouping, results, attempts = h
    members, val, fmt = result
    for part in s.parts[w]:
        c = 2 * w + part
        if members >> c & 1:
            assert whole, "a worker does not know whether it is in a sum"
            assert val >> 6 * c & 63 == 4 ** attempts[q - 1][0], "what is in the sum is not what the worker thinks it has sent"
    return (gen, regrouping, results[: q - 1] + (result,) + results[q:], attempts)


def host_in(s, w, h, m, out):
    kind, _, g, q = m[:4]
    gen, regrouping, results, attempts = h
    if g != gen:
        return h
    if kind == RES:
        if results[q - 1] is not None:
            assert results[q - 1] == m[4], "two results of one block"
            return h
        if not may_send(s, results, q) and q > s.window:
            return h  # (kept for later in the real one; the set keeps it here)
        h = close(s, w, h, q, m[4])
        host_says(s, w, h, out)
        return h
    if kind == FMT and results[q - 1] is None:
        attempt, fmt = attempts[q - 1]
        if fmt != m[5] and attempt < 2:
            h = (gen, regrouping, results, attempts[: q - 1] + ((attempt + 1, m[5]),) + attempts[q:])
            host_says(s, w, h, out)
        return h
    return h


# ---------------------------------------------------------------- the whole
class World:
    """comps: hosts, leaves' slots, root's slots, control.  Control: (phase, gen, ks left, root restarts, leaf restarts, regrouping leaf restarts)
    phase 0: all is well; 1: a regroup is going on."""

    def __init__(self, s):
        self.s = s
        R = len(s.racks)
        self.first_leaf, self.first_root = s.n, s.n + R * s.slots
        self.ctl = self.first_root + s.slots

    def start(self):
        s = self.s
        comps = [host_new(s, w) for w in range(s.n)]
        comps += [leaf_empty(s, 1) for _ in range(len(s.racks) * s.slots)]
        comps += [root_empty(s, 1, s.k[0]) for _ in range(s.slots)]
        comps.append((0, 1, s.k[1:], s.root_restarts, s.leaf_restarts, s.leaf_regroups))
        out = []
        for w in range(s.n):
            host_says(s, w, comps[w], out)
        return comps, out

    def step(self, i, state, m, out):
        s = self.s
        if i < self.first_leaf:
            return host_in(s, i, state, m, out)
        if i < self.first_root:
            return leaf_in(s, (i - self.first_leaf) // s.slots, state, m, out)
        return root_in(s, state, m, out)

    def check(self, comps):
        """All workers have the same results."""
        s = self.s
        for q in range(s.blocks):
            seen = None
            for w in range(s.n):
                result = comps[w][2][q]
                if result is not None:
                    assert seen is None or seen == result, f"two results of block {q + 1}"
                    seen = result

    def fetch(self, comps, w, peer, out):
        """Everything that this peer has and w lacks."""
        s, h = self.s, comps[w]
        for q in range(1, s.blocks + 1):
            result = comps[peer][2][q - 1]
            if result is not None and h[2][q - 1] is None:
                whole = "whole-members" not in s.without or s.rack_of[w] == s.rack_of[peer]
                h = close(s, w, h, q, result, whole)
        host_says(s, w, h, out)
        return h

    def others(self, comps):
        """Steps that are not packets: (name, function(comps, out) -> whether old packets are gone)."""
        s, ctl = self.s, self.ctl
        phase, gen, ks, root_restarts, leaf_restarts, leaf_regroups = comps[ctl]
        R = len(s.racks)

        if ks:
            def change(c, out):
                for i in range(self.first_root, ctl):
                    c[i] = (c[i][0], ks[0], *c[i][2:])
                c[ctl] = (phase, gen, ks[1:], root_restarts, leaf_restarts, leaf_regroups)
            yield f"k becomes {ks[0]}", change
        if phase == 0 and root_restarts:
            def crash(c, out):
                for i in range(self.first_root, ctl):
                    c[i] = root_empty(s, gen if "regroup" in s.without else 0, c[i][1])
                c[ctl] = (0 if "regroup" in s.without else 1, gen, ks, root_restarts - 1, leaf_restarts, leaf_regroups)
            yield "the root restarts", crash
        for r in range(R):
            if phase == 0 and leaf_restarts:
                def crash(c, out, r=r):
                    for i in range(s.slots):
                        c[self.first_leaf + r * s.slots + i] = leaf_empty(s, gen)
                    c[ctl] = (phase, gen, ks, root_restarts, leaf_restarts - 1, leaf_regroups)
                yield f"leaf {r} restarts", crash
            if phase == 0 and leaf_regroups:
                def crash(c, out, r=r):
                    for i in range(s.slots):
                        c[self.first_leaf + r * s.slots + i] = leaf_empty(s, 0)
                    c[ctl] = (1, gen, ks, root_restarts, leaf_restarts, leaf_regroups - 1)
                yield f"leaf {r} restarts, the job regroups", crash
        if phase == 1:
            late = "early-admission" in s.without or "early-resume" in s.without
            for w in range(s.n):
                if comps[w][0] == gen:
                    def regroup(c, out, w=w):
                        c[w] = (gen + 1, 1, *c[w][2:])
                    yield f"worker {w} regroups", regroup
            if all(comps[w][0] == gen + 1 for w in range(s.n)) or late:
                for r in range(R):
                    if comps[self.first_leaf + r * s.slots][0] != gen + 1:
                        def admit(c, out, r=r):
                            for i in range(s.slots):
                                c[self.first_leaf + r * s.slots + i] = leaf_empty(s, gen + 1)
                        yield f"leaf {r} admits", admit
                if comps[self.first_root][0] != gen + 1:
                    def admit(c, out):
                        for i in range(self.first_root, ctl):
                            c[i] = root_empty(s, gen + 1, c[i][1])
                    yield "the root admits", admit
                if all(comps[i][0] == gen + 1 for i in range(self.first_leaf, ctl)) and all(comps[w][0] == gen + 1 for w in range(s.n)):
                    def over(c, out):
                        c[ctl] = (2, gen + 1, ks, root_restarts, leaf_restarts, leaf_regroups)
                        return True
                    yield "all admit", over
        if phase == 2 or phase == 1 and "early-resume" in s.without and all(comps[i][0] == gen + 1 for i in range(self.first_leaf, ctl)):
            for w in range(s.n):
                if comps[w][1]:
                    def resume(c, out, w=w):
                        c[w] = (c[w][0], 0, *c[w][2:])
                        for peer in range(s.n):
                            if peer != w and "fetch" not in s.without:
                                c[w] = self.fetch(c, w, peer, [])
                        host_says(s, w, c[w], out)
                        if phase == 2 and not any(c[v][1] for v in range(s.n)):
                            c[ctl] = (0, *c[ctl][1:])
                    yield f"worker {w} resumes", resume
        for w in range(s.n):
            for peer in range(s.n):
                if peer != w and not comps[w][1] and self.may_ask(comps, w, peer):
                    def ask(c, out, w=w, peer=peer):
                        c[w] = self.fetch(c, w, peer, out)
                    yield f"worker {w} asks {peer}", ask

    def may_ask(self, comps, w, peer):
        """The peer has something of the first block that w lacks (other peers answer the same)."""
        mine, theirs = comps[w][2], comps[peer][2]
        return any(a is None and b is not None for a, b in zip(mine, theirs))

    def finished(self, comps, live):
        return all(r is not None for w in live for r in comps[w][2])

    # -- fairness
    def fair(self, comps, live, rounds=12):
        """Lossless: every live host repeats itself once a round, in turn. Rounds until all live ones have everything; None: never; -1: a result that
        no live worker holds and no slot has any more."""
        s, comps = self.s, list(comps)
        lonely = False
        for n in range(rounds):
            if self.finished(comps, live):
                return n
            todo = True
            while todo:  # the controller's steps; who is dead is not waited for
                todo = False
                for name, do in list(self.others(comps)):
                    if "regroups" in name or "admit" in name or "resumes" in name:
                        if "resumes" in name and int(name.split()[1]) not in live:
                            w = int(name.split()[1])
                            comps[w] = (comps[w][0], 0, *comps[w][2:])
                            if not any(comps[v][1] for v in range(s.n)):
                                comps[self.ctl] = (0, *comps[self.ctl][1:])
                        else:
                            do(comps, [])
                        todo = True
                        break
            lonely = False
            for w in live:
                queue, out = deque(), []
                host_says(s, w, comps[w], out, pull=False)
                queue.extend(out)
                stale, sent = False, set(out)
                while queue:
                    m = queue.popleft()
                    if m[0] == STALE and m[1] == w:
                        stale = True
                    if m[1] < s.n and m[1] not in live:
                        continue
                    out = []
                    comps[m[1]] = self.step(m[1], comps[m[1]], m, out)
                    for o in out:
                        if o[0] in (C, PULL):  # what a host says next waits for its turn
                            continue
                        queue.append(o)
                if stale and s.peers:  # (a PULL without an answer asks peers, too: not needed here)
                    for peer in live:
                        if peer != w and self.may_ask(comps, w, peer):
                            comps[w] = self.fetch(comps, w, peer, [])
                    if not self.finished(comps, [w]) and not any(self.may_ask(comps, w, p) for p in live):
                        lonely |= any(self.may_ask(comps, w, p) for p in range(s.n) if p != w)
        return -1 if lonely else None


class Symmetry:
    """Workers of a rack, and racks, change places where the setting tells them not apart."""

    def __init__(self, s):
        from itertools import permutations, product
        self.s, self.perms = s, []
        kind = lambda w: (s.fmts[w], w in s.merged)
        for racks in permutations(range(len(s.racks))):
            if any(s.racks[a] != s.racks[r] or s.levels[a] != s.levels[r] for r, a in enumerate(racks)):
                continue
            for inside in product(*(list(permutations(s.workers_of[a])) for a in racks)):
                to = [None] * s.n
                for r in range(len(s.racks)):
                    for w, v in zip(s.workers_of[r], inside[r]):
                        to[w] = v
                if all(kind(w) == kind(to[w]) for w in range(s.n)):
                    self.perms.append((tuple(to), racks))

    def bits(self, p, x):
        out, to = 0, p[0]
        while x:
            low = x & -x
            c = low.bit_length() - 1
            out |= 1 << 2 * to[c >> 1] + (c & 1)
            x ^= low
        return out

    def val(self, p, x):
        out, to, c = 0, p[0], 0
        while x:
            out |= (x & 63) << 6 * (2 * to[c >> 1] + (c & 1))
            x >>= 6; c += 1
        return out

    def result(self, p, r):
        return r and (self.bits(p, r[0]), self.val(p, r[1]), r[2])

    def place(self, p, i):
        s = self.s
        if i < s.n:
            return p[0][i]
        if i < s.n + len(s.racks) * s.slots:
            r, slot = divmod(i - s.n, s.slots)
            return s.n + p[1][r] * s.slots + slot
        return i

    def state(self, p, i, x):
        s = self.s
        if i < s.n:
            return (x[0], x[1], tuple(self.result(p, r) for r in x[2]), x[3])
        if i < s.n + len(s.racks) * s.slots:
            return (*x[:5], self.bits(p, x[5]), self.bits(p, x[6]), *x[7:9], tuple((self.bits(p, a), self.val(p, b)) for a, b in x[9]), self.result(p, x[10]))
        if i < s.n + (len(s.racks) + 1) * s.slots:
            return (*x[:4], self.bits(p, x[4]), self.val(p, x[5]), x[6])
        return x

    def msg(self, p, m):
        kind, to, gen, b = m[:4]
        to = self.place(p, to)
        head = (kind, to, gen, b)
        if kind == C:
            return (*head, 2 * p[0][m[4] >> 1] + (m[4] & 1), *m[5:])
        if kind == PULL:
            return (*head, self.s.workers_of[p[1][self.s.rack_of[m[4]]]][0])
        if kind == INC:
            return (*head, p[1][m[4]], self.bits(p, m[5]), self.val(p, m[6]), m[7])
        if kind == ASK:
            return (*head, p[1][m[4]])
        if kind == RES:
            return (*head, self.result(p, m[4]))
        if kind == ACK or kind == FMT:
            return (*head, self.bits(p, m[4]), m[5])
        return head


class Found(Exception):
    pass


def explore(s, limit=3_000_000, seconds=600, fair=True, sym=True):
    """Every interleaving. Returns what was counted; raises Found with the path of a counterexample."""
    world = World(s)
    t0 = time.time()
    comps, out = world.start()
    states, state_id = [], {}       # component states
    msgs, msg_id = [], {}

    def cid(x):
        i = state_id.get(x)
        if i is None:
            i = state_id[x] = len(states); states.append(x)
        return i

    def mid(m):
        i = msg_id.get(m)
        if i is None:
            i = msg_id[m] = len(msgs); msgs.append(m); by_dest[m[1]] |= 1 << i
        return i

    by_dest = [0] * (len(comps) + 1)
    memo = {}
    leaf_lo, root_lo, ctl = world.first_leaf, world.first_root, world.ctl
    restart_possible = bool(s.leaf_restarts)

    symmetry = Symmetry(s) if sym else None
    perms = symmetry.perms if sym else []
    identity = tuple(range(s.n))
    perms = [p for p in perms if p[0] != identity]
    state_memo = [{} for _ in perms]
    msg_memo = [[] for _ in perms]
    places = [[symmetry.place(p, i) for i in range(ctl + 1)] for p in perms] if sym else []
    srcs = [[pl.index(i) for i in range(ctl + 1)] for pl in places]

    def canonical(key, bag):
        """One of the states that are the same but for names."""
        best, which = key, None
        for n, p in enumerate(perms):
            m = state_memo[n]
            other = []
            for i in srcs[n]:
                t = m.get((i, key[i]))
                if t is None:
                    t = m[i, key[i]] = cid(symmetry.state(p, i, states[key[i]]))
                other.append(t)
            other = tuple(other)
            if other < best:
                best, which = other, n
        if which is None:
            return key, bag
        to = msg_memo[which]
        while len(to) < len(msgs):
            to.append(None)
        out = 0
        while bag:
            low = bag & -bag
            bag ^= low
            j = low.bit_length() - 1
            t = to[j]
            if t is None:
                t = to[j] = 1 << mid(symmetry.msg(perms[which], msgs[j]))
            out |= t
        return best, out

    def put(bag, out):
        for m in out:
            bag |= 1 << mid(m)
        return bag

    mask_memo = {}

    def masks(i, c):
        """Packets that this component's state makes useless: (as sender, as receiver), and those that it alone makes useless."""
        got = mask_memo.get((i, c))
        if got is not None and got[0] == len(msgs):
            return got
        x = states[c]
        sender = receiver = alone = 0
        for j, m in enumerate(msgs):
            kind, to, gen, b = m[:4]
            bit = 1 << j
            if i < leaf_lo:
                w = m[4] // 2 if kind == C else m[4] if kind == PULL else None
                if w == i and x[2][b - 1] is not None:
                    sender |= bit
                if to == i and (kind == STALE or x[0] > gen or x[0] == gen and x[2][b - 1] is not None):
                    alone |= bit
            elif i < root_lo:
                over = x[0] == gen and (x[1] > b or x[1] == b and x[2] >= DONE)
                if to == i:
                    if kind in (C, PULL):
                        receiver |= bit * over
                    elif over and (x[1] > b or x[2] == DONE):
                        alone |= bit
                    elif kind == ACK and x[0] == gen and x[1] == b and x[2] == OPEN and x[4] and x[3] == m[5] and m[4] & ~x[6] == 0:
                        alone |= bit
                elif kind in (INC, ASK) and s.leaf(m[4], b) == i and over:
                    sender |= bit
            elif to == i:
                if x[0] == gen and (x[2] > b or x[2] == b and x[3]):
                    receiver |= bit
                elif kind == INC and x[0] == gen and x[2] == b and not x[3] and (m[5] & x[4] if "overlap" not in s.without else m[5] & ~x[4] == 0):
                    alone |= bit  # a question does the same
        got = mask_memo[i, c] = (len(msgs), sender, receiver, alone)
        return got

    restarts_of = lambda key: states[key[ctl]][4]

    def tidy(key, bag):
        """Leave out packets that change nothing any more, for ever."""
        said = heard = gone = up = over = leaf_alone = 0
        for i in range(leaf_lo):
            _, sender, _, alone = masks(i, key[i]); said |= sender; gone |= alone
        for i in range(leaf_lo, root_lo):
            _, sender, receiver, alone = masks(i, key[i]); up |= sender; heard |= receiver; leaf_alone |= alone
        for i in range(root_lo, ctl):
            _, _, receiver, alone = masks(i, key[i]); over |= receiver; gone |= alone
        if not restarts_of(key):
            gone |= said & heard | up & over | leaf_alone
        return bag & ~gone

    bag = put(0, out)
    root_key = tuple(cid(c) for c in comps)
    bag = tidy(root_key, bag)
    start = (root_key, bag)
    seen = {start: None}
    stack = [start]
    steps = 0
    fair_seen = {}
    fair_max, fair_runs, lonely = 0, 0, 0
    complete = True
    done_states = 0

    def path(state, last):
        names = [last]
        while seen[state] is not None:
            state, n = seen[state]
            names.append(n)
        return list(reversed(names))

    def describe(n):
        return n if isinstance(n, str) else "deliver " + str(msgs[n])

    while stack:
        state = stack.pop()
        key, bag = state
        comps = [states[c] for c in key]
        try:
            if fair:
                kmax = comps[root_lo][1]
                if key not in fair_seen:
                    fair_seen[key] = 1
                    for size in sorted({kmax, s.n}):
                        for live in combinations(range(s.n), size):
                            fair_runs += 1
                            n = world.fair(comps, live)
                            if n is None:
                                raise AssertionError(f"with {live} alive (k = {kmax}) it never ends")
                            if n < 0:
                                lonely += 1
                            fair_max = max(fair_max, n)
        except AssertionError as e:
            raise Found(str(e), [describe(n) for n in path(state, "then fair and lossless")], len(seen)) from e
        nexts = []
        for i in range(ctl):
            mine = bag & by_dest[i]
            ci = key[i]
            while mine:
                low = mine & -mine
                mine ^= low
                j = low.bit_length() - 1
                got = memo.get((i, ci, j))
                if got is None:
                    out = []
                    try:
                        new = world.step(i, comps[i], msgs[j], out)
                        if msgs[j][0] == PULL:  # contributions bring the same answers
                            out = [m for m in out if m[1] >= leaf_lo]
                        if leaf_lo <= i < root_lo and new[2] == OPEN:  # it may ask at any time
                            out.append((ASK, s.root(new[1]), new[0], new[1], (i - leaf_lo) // s.slots))
                        got = (cid(new), put(0, out))
                    except AssertionError as e:
                        raise Found(str(e), [describe(n) for n in path(state, j)], len(seen)) from e
                    memo[i, ci, j] = got
                if got[0] == ci and not got[1] & ~bag:
                    continue
                nexts.append((key[:i] + (got[0],) + key[i + 1:], bag | got[1], j))
        for label, do in world.others(comps):
            c, out = list(comps), []
            try:
                cleared = do(c, out)
            except AssertionError as e:
                raise Found(str(e), [describe(n) for n in path(state, label)], len(seen)) from e
            b = put(0 if cleared else bag, out)
            nexts.append((tuple(cid(x) for x in c), b, label))
        for k2, b2, label in nexts:
            steps += 1
            b2 = tidy(k2, b2)
            new = (k2, b2)
            if perms:
                new = canonical(k2, b2)
                k2 = new[0]
            if new in seen:
                continue
            seen[new] = (state, label)
            try:
                world.check([states[c] for c in k2])
            except AssertionError as e:
                raise Found(str(e), [describe(n) for n in path(state, label)], len(seen)) from e
            stack.append(new)
        if len(seen) >= limit or time.time() - t0 > seconds:
            complete = not stack
            break
    return dict(states=len(seen), steps=steps, nodes=len(fair_seen), fair_runs=fair_runs, fair_rounds=fair_max, lonely=lonely,
                packets=len(msgs), complete=complete, seconds=round(time.time() - t0, 1))


TWO = dict(racks=(2, 2))
SETTINGS = {
    "k4": dict(k=(4,)), "k3": dict(k=(3,)), "k2": dict(k=(2,)), "k1": dict(k=(1,)),
    "k2 to 4": dict(k=(2, 4)), "k4 to 2": dict(k=(4, 2)), "k3 to 2": dict(k=(3, 2)), "k4 to 3": dict(k=(4, 3)),
    "k4 one buffer": dict(k=(4,), ring=2), "k3 one buffer": dict(k=(3,), ring=2), "k2 one buffer": dict(k=(2,), ring=2),
    "k4 exact, not early": dict(k=(4,), ring=2, early=False),
    "k4 exact, not early, a leaf restarts": dict(k=(4,), ring=2, early=False, leaf_restarts=1),
    "k4 root restarts, 1 block": dict(k=(4,), root_restarts=1, blocks=1),
    "k3 root restarts, 1 block": dict(k=(3,), root_restarts=1, blocks=1),
    "k2 root restarts, 1 block": dict(k=(2,), root_restarts=1, blocks=1),
    "k4 a leaf restarts, 1 block": dict(k=(4,), leaf_restarts=1, blocks=1),
    "k3 a leaf restarts, 1 block": dict(k=(3,), leaf_restarts=1, blocks=1),
    "k2 a leaf restarts, 1 block": dict(k=(2,), leaf_restarts=1, blocks=1),
    "k4 a leaf restarts": dict(k=(4,), leaf_restarts=1),
    "k3 a leaf restarts": dict(k=(3,), leaf_restarts=1),
    "k2 a leaf restarts": dict(k=(2,), leaf_restarts=1),
    "k3 a leaf restarts twice, 1 block": dict(k=(3,), leaf_restarts=2, blocks=1),
    "k4 a leaf restarts and all regroup, 1 block": dict(k=(4,), leaf_regroups=1, blocks=1),
    "k3 a leaf restarts and all regroup, 1 block": dict(k=(3,), leaf_regroups=1, blocks=1),
    "k2 a leaf restarts and all regroup, 1 block": dict(k=(2,), leaf_regroups=1, blocks=1),
    "k3 a leaf restarts and all regroup": dict(k=(3,), leaf_regroups=1),
    "k3 root and a leaf restart, 1 block": dict(k=(3,), leaf_restarts=1, root_restarts=1, blocks=1),
    "k2 root and a leaf restart, 1 block": dict(k=(2,), leaf_restarts=1, root_restarts=1, blocks=1),
    "k3 one merges, 1 block": dict(k=(3,), merged=(0,), blocks=1),
    "k2 one merges": dict(k=(2,), merged=(0,)),
    "k4 two formats, 1 block": dict(k=(4,), fmts=[0, 1, 1, 0], blocks=1),
    "k3 two formats, 1 block": dict(k=(3,), fmts=[0, 1, 1, 0], blocks=1),
    "k2 two formats, 1 block": dict(k=(2,), fmts=[0, 1, 1, 0], blocks=1),
    "k3 racks' formats, 1 block": dict(k=(3,), fmts=[0, 0, 1, 1], blocks=1),
    "k3 two formats, a leaf restarts, 1 block": dict(k=(3,), fmts=[0, 0, 1, 1], blocks=1, leaf_restarts=1),
    "k3 three and one, 1 block": dict(racks=(3, 1), k=(3,), blocks=1),
    "k2 two slots, 3 blocks": dict(k=(2,), slots=2, window=1, blocks=3),
    "k3 two slots, 3 blocks": dict(k=(3,), slots=2, window=1, blocks=3),
    "k4 two slots, 3 blocks": dict(k=(4,), slots=2, window=1, blocks=3),
    "k3 no peers (sums for one), 1 block": dict(k=(3,), blocks=1, peers=False),
    "k2 no peers (sums for one), a leaf restarts, 1 block": dict(k=(2,), blocks=1, peers=False, leaf_restarts=1),
    "k4 root restarts": dict(k=(4,), root_restarts=1),
    "k3 root restarts": dict(k=(3,), root_restarts=1),
    "k2 root restarts": dict(k=(2,), root_restarts=1),
    "k5 three racks of two, 1 block": dict(racks=(2, 2, 2), k=(5,), blocks=1),
}


def show(name, kw, **limits):
    try:
        got = explore(Setting(**kw), **limits)
        print(f"{name:46s} " + ("complete " if got["complete"] else "CUT OFF  ") + " ".join(f"{a} {b}" for a, b in got.items() if a != "complete"), flush=True)
    except Found as f:
        print(f"{name:46s} FOUND after {f.args[2]} states: {f.args[0]}", flush=True)
        for line in f.args[1]:
            print("      " + line, flush=True)


RULES = [  # what is left out, and where that shows
    ("overlap", "the root adds a set that it has in part", dict(k=(3,), leaf_restarts=1, blocks=1)),
    ("taken", "a leaf takes the same contribution twice", dict(k=(3,), blocks=1)),
    ("early", "no increment goes up before its level", dict(k=(2,), blocks=1)),
    ("busy", "a leaf puts the next contribution where an unacknowledged increment is", dict(k=(4,), ring=2, blocks=1)),
    ("recycle", "a level is used once: (rack, level), fewer levels than workers", dict(k=(4,), ring=2, blocks=1)),
    ("recycle", "... and k < n", dict(k=(3,), ring=2, blocks=1)),
    ("ask", "a leaf that has sent all does not ask", dict(k=(3,), blocks=1, peers=False)),
    ("late", "the root answers nothing once a block is closed", dict(k=(3,), blocks=1)),
    ("ask-closes", "a leaf's question does not close a block whose k was lowered", dict(k=(4, 2), blocks=1)),
    ("gone", "a leaf forgets a STALE", dict(k=(2,))),
    ("discard", "a leaf keeps an increment that the root will never take", dict(k=(3,), leaf_restarts=1, blocks=1)),
    ("learn", "a leaf does not count as taken what the root has", dict(k=(4,), leaf_restarts=1, blocks=1)),
    ("regroup", "the root restarts, and the job goes on in the same generation", dict(k=(2,), root_restarts=1, blocks=1)),
    ("early-admission", "switches admit the new generation before all workers have regrouped", dict(k=(2,), root_restarts=1, blocks=1)),
    ("early-resume", "a worker resumes before all have regrouped", dict(k=(2,), root_restarts=1, blocks=1)),
    ("fetch", "who resumes does not ask the others first", dict(k=(2,), root_restarts=1, blocks=1)),
    ("whole-members", "a RESULT names the members of the worker's own rack alone; the root restarts", dict(k=(3,), root_restarts=1, blocks=1)),
    ("whole-members", "... nothing restarts, but a slot moves on", dict(k=(2,))),
    ("final", "a leaf refuses by a format that the root has not confirmed", dict(k=(3,), fmts=[0, 1, 1, 1], blocks=1)),
    ("reset", "a leaf does not begin anew in the root's format", dict(k=(3,), fmts=[0, 0, 1, 1], blocks=1)),
    ("probe", "a contribution in another format does not make the leaf ask the root for its", dict(k=(3,), fmts=[0, 1, 1, 1], blocks=1)),
]


def leave_out(only=()):
    for rule, what, kw in RULES:
        if only and rule not in only:
            continue
        print(f"-- {rule}: {what}   {kw}", flush=True)
        show("   with the rule", kw, seconds=120)
        show("   without it", dict(kw, without=(rule,)), sym=False, seconds=60)
        if rule in ("regroup", "early-admission", "early-resume", "fetch", "discard"):
            show("   ... liveness not looked at", dict(kw, without=(rule,)), sym=False, seconds=60, fair=False)


# ---------------------------------------------------------------- random, deep
class Random:
    """A bag that loses and repeats, and hosts with a window; slots, formats, k, deaths, restarts by chance."""

    def __init__(self, seed, racks=(3, 3, 3)):
        self.rng = r = random.Random(seed)
        n = sum(racks)
        slots = r.choice((2, 4))
        ks = [r.randint(1, n) for _ in range(r.choice((1, 1, 2, 3)))]
        levels = [set(r.sample(range(1, m), r.randint(0, m - 1))) for m in racks]
        self.s = s = Setting(racks=racks, k=ks, blocks=slots * r.choice((2, 3)), slots=slots, window=slots // 2, ring=2, levels=levels,
                             merged=r.sample(range(n), r.choice((0, 0, 2, 4))), fmts=[r.choice((0, 0, 1)) for _ in range(n)] if r.random() < 0.3 else None,
                             root_restarts=r.choice((0, 0, 1, 2)), leaf_restarts=r.choice((0, 0, 1, 3)), leaf_regroups=r.choice((0, 0, 1)))
        self.world = World(s)
        self.comps, _ = self.world.start()
        self.bag, self.loss, self.twice = [], r.choice((0, .05, .2, .5)), r.choice((0, .1, .3))
        self.pace = [r.choice((1, 1, 1, .3, .05)) for _ in range(n)]
        self.deaths = r.sample(range(n), r.randint(0, n - max(ks)))
        self.dead = set()
        self.stale = set()
        self.packets = 0

    def put(self, out):
        for m in out:
            if self.rng.random() >= self.loss:
                self.bag.append(m)
            while self.rng.random() < self.twice:
                self.bag.append(m)

    def go(self, steps=4000):
        s, r, w0 = self.s, self.rng, self.world
        for _ in range(steps):
            live = [w for w in range(s.n) if w not in self.dead]
            if w0.finished(self.comps, live):
                break
            x = r.random()
            if x < .3 or not self.bag:
                w = r.choice(live)
                if r.random() < self.pace[w]:
                    out = []
                    host_says(s, w, self.comps[w], out, pull=True)
                    if out:
                        self.put([r.choice(out)])
            elif x < .97:
                i = r.randrange(len(self.bag)) if r.random() < .5 else 0
                m = self.bag.pop(i)
                if m[1] < s.n and m[1] in self.dead:
                    continue
                if m[0] == STALE and m[1] < s.n and m[2] == self.comps[m[1]][0]:
                    self.stale.add((m[1], m[3]))
                out = []
                self.comps[m[1]] = w0.step(m[1], self.comps[m[1]], m, out)
                self.packets += 1
                self.put([o for o in out if o[0] not in (C, PULL)])  # hosts speak in their turn
                if m[1] < s.n:
                    w0.check(self.comps)
            else:
                if self.deaths and r.random() < .2:
                    self.dead.add(self.deaths.pop())
                steps_now = list(w0.others(self.comps))
                if steps_now:
                    name, do = r.choice(steps_now)
                    if "asks" in name:
                        w, peer = int(name.split()[1]), int(name.split()[3])
                        if w in self.dead or peer in self.dead or not any(v == w for v, _ in self.stale):
                            continue
                    out = []
                    do(self.comps, out)
                    w0.check(self.comps)
        live = [w for w in range(s.n) if w not in self.dead]
        n = w0.fair(self.comps, live, rounds=60)
        assert n is not None, f"with {live} alive it never ends"
        return n


def deep(seconds, seed):
    t0, runs, packets, most, lonely, kinds = time.time(), 0, 0, 0, 0, {}
    while time.time() - t0 < seconds:
        it = Random(seed)
        try:
            n = it.go()
        except AssertionError as e:
            print(f"seed {seed}: {e}\n   {vars(it.s)}", flush=True)
            raise
        runs += 1; packets += it.packets; seed += 1
        most, lonely = max(most, n), lonely + (n < 0)
        for name in ("root_restarts", "leaf_restarts", "leaf_regroups", "merged"):
            kinds[name] = kinds.get(name, 0) + bool(getattr(it.s, name))
    print(f"random: {runs} runs, {packets} packets, at most {most} fair rounds to the end, {lonely} where only dead workers held a result; with {kinds}; {time.time() - t0:.0f} s", flush=True)


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "exhaustive"
    if what == "exhaustive":
        limit = float(os.environ.get("SECONDS_EACH", "600"))
        for name, kw in SETTINGS.items():
            if len(sys.argv) < 3 or name in sys.argv[2:]:
                show(name, kw, seconds=limit)
    elif what == "rules":
        leave_out(sys.argv[2:])
    elif what == "random":
        deep(float(sys.argv[2]) if len(sys.argv) > 2 else 60, int(sys.argv[3]) if len(sys.argv) > 3 else 1)
