# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""The compiled part of the simulator: one vLLM-V1 engine, from scheduler event to scheduler event.

Everything lives in plain arrays, so that a run can stop at any arrival and go on. Between events the
members of the batch do not change and a step's time is affine in the KV tokens it reads, so a stretch
of decode steps is summed in closed form.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numba import njit

#: Nothing in here allocates, so arrays need no reference counts: they cost most of the time otherwise.
compiled = njit(cache=True, error_model="numpy", forceinline=True, nogil=True, _nrt=False)

#: Places in the counters' array.
PUSHED, NEXT, RUNNING, DECODING, KV, USED, DECODES, WAIT_HEAD, WAIT_TAIL, RUN_TAIL = range(10)
PREFILLING, HEAP, CACHED, LRU_HEAD, LRU_TAIL, LRU_FREE, STEPS, PREEMPTIONS, HITS, DONE, WAITING, PEAK = range(10, 22)
COUNTERS = 22
#: Places in the shape's array.
CAPACITY, BLOCK, BUDGET, MAX_SEQS, PREFIX_CACHE = range(5)
#: Places in the costs' array (s); see :class:`hetgpu.simulate.steptime.StepCosts`.
BASE, WEIGHTS, PER_SEQ, PER_KV, PER_TOKEN, COMPUTE, MIXED, PER_PAIR, API, OUT, FLOOR, KNEE, BATCH_LOSS = range(13)


#: Columns of a request's row, of its times (s), and of an entry of the prefix cache.
PROMPT, ANSWER, KEY, NEED, COMPUTED, LEFT, JOINED, ENDS, HEAP_AT, WAIT_NEXT, RUN_PREV, RUN_NEXT = range(12)
AVAIL, FIRST, LAST = range(3)
E_KEY, E_BLOCKS, E_PREV, E_NEXT = range(4)

#: Tokens a step at which half of ``batch_loss`` is lost.
HALF_LOSS_TOKENS = 8.0


class Arrays(NamedTuple):
    """An engine's state; ids are rows, -1 is none. Few arrays, since each is handed from function to function.

    ``heap`` orders who decodes by the decode step at which they end, ``prefill`` holds who prefills,
    ``phase`` counts who decodes by the step (modulo a block) at which they need a block.
    """

    clock: Any
    count: Any
    requests: Any
    times: Any
    heap: Any
    prefill: Any
    phase: Any
    entry_of_key: Any
    entries: Any


@compiled
def _heap_set(s, place, request):
    s.heap[place] = request
    s.requests[request, HEAP_AT] = place


@compiled
def _before(s, one, other):
    """Whether a request ends before another; of two that end together the earlier one goes first."""
    a, b = s.requests[one, ENDS], s.requests[other, ENDS]
    return a < b or (a == b and one < other)


@compiled
def _sift(s, place):
    """Put the request at a place of the heap where it belongs, up or down."""
    request, size = s.heap[place], s.count[HEAP]
    while place > 0 and _before(s, request, s.heap[(place - 1) // 2]):
        _heap_set(s, place, s.heap[(place - 1) // 2])
        place = (place - 1) // 2
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _before(s, s.heap[child + 1], s.heap[child]):
            child += 1
        if _before(s, request, s.heap[child]):
            break
        _heap_set(s, place, s.heap[child])
        place = child
    _heap_set(s, place, request)


@compiled
def _heap_remove(s, request):
    place = s.requests[request, HEAP_AT]
    s.count[HEAP] -= 1
    moved = s.heap[s.count[HEAP]]
    if moved != request:
        _heap_set(s, place, moved)
        _sift(s, place)
    s.requests[request, HEAP_AT] = -1


@compiled
def _entry_drop(s, entry):
    """Take an entry out of the cache's LRU list; its blocks are free and hold nothing."""
    c = s.count
    before, after = s.entries[entry, E_PREV], s.entries[entry, E_NEXT]
    if before >= 0:
        s.entries[before, E_NEXT] = after
    else:
        c[LRU_HEAD] = after
    if after >= 0:
        s.entries[after, E_PREV] = before
    else:
        c[LRU_TAIL] = before
    c[CACHED] -= s.entries[entry, E_BLOCKS]
    if s.entries[entry, E_KEY] >= 0:
        s.entry_of_key[s.entries[entry, E_KEY]] = -1
    s.entries[entry, E_NEXT] = c[LRU_FREE]
    c[LRU_FREE] = entry


@compiled
def _entry_add(s, key, blocks):
    """Freed blocks join the LRU list at its young end; ``key`` -1 for an answer's, which nobody asks for again."""
    c = s.count
    if blocks <= 0:
        return
    entry = c[LRU_FREE]
    c[LRU_FREE] = s.entries[entry, E_NEXT]
    s.entries[entry, E_KEY], s.entries[entry, E_BLOCKS] = key, blocks
    s.entries[entry, E_PREV], s.entries[entry, E_NEXT] = c[LRU_TAIL], -1
    if c[LRU_TAIL] >= 0:
        s.entries[c[LRU_TAIL], E_NEXT] = entry
    else:
        c[LRU_HEAD] = entry
    c[LRU_TAIL] = entry
    c[CACHED] += blocks
    if key >= 0:
        s.entry_of_key[key] = entry


@compiled
def _evict(s, capacity):
    """Overwrite the oldest cached blocks where used ones need their place."""
    c = s.count
    over = c[USED] + c[CACHED] - capacity
    while over > 0:
        entry = c[LRU_HEAD]
        if s.entries[entry, E_BLOCKS] <= over:
            over -= s.entries[entry, E_BLOCKS]
            _entry_drop(s, entry)
        else:
            s.entries[entry, E_BLOCKS] -= over
            c[CACHED] -= over
            over = 0


@compiled
def _release(s, shape, request, computed):
    """A request's blocks become free; full ones stay cached, the prompt's for longer than the answer's."""
    block, key = shape[BLOCK], s.requests[request, KEY]
    s.count[USED] -= (computed + block - 1) // block
    if shape[PREFIX_CACHE]:
        prompt = min(computed, s.requests[request, PROMPT]) // block
        _entry_add(s, -1, computed // block - prompt)
        if prompt > 0 and s.entry_of_key[key] >= 0:
            _entry_drop(s, s.entry_of_key[key])
        _entry_add(s, key, prompt)
        # The list is bounded by the blocks: an entry holds one at least.
        _evict(s, shape[CAPACITY])


@compiled
def _leave(s, request):
    """Take a request out of the running list."""
    before, after = s.requests[request, RUN_PREV], s.requests[request, RUN_NEXT]
    if before >= 0:
        s.requests[before, RUN_NEXT] = after
    if after >= 0:
        s.requests[after, RUN_PREV] = before
    else:
        s.count[RUN_TAIL] = before
    s.count[RUNNING] -= 1


@compiled
def _stop_decoding(s, shape, request):
    """A decoding request leaves the batch; the KV tokens it had."""
    c = s.count
    computed = s.requests[request, NEED] + c[DECODES] - s.requests[request, JOINED]
    s.phase[(s.requests[request, NEED] - s.requests[request, JOINED]) % shape[BLOCK]] -= 1
    c[DECODING] -= 1
    c[KV] -= computed
    return computed


@compiled
def _preempt_last(s, shape):
    """Recompute preemption of the request that was admitted last: it waits first in line, its answer so far kept."""
    c = s.count
    request = c[RUN_TAIL]
    if s.requests[request, HEAP_AT] >= 0:
        computed = _stop_decoding(s, shape, request)
        s.requests[request, LEFT] = s.requests[request, ENDS] - c[DECODES]
        s.requests[request, NEED] = (
            s.requests[request, PROMPT] + s.requests[request, ANSWER] - s.requests[request, LEFT]
        )
        _heap_remove(s, request)
    else:
        computed = s.requests[request, COMPUTED]
        place = 0
        while s.prefill[place] != request:
            place += 1
        c[PREFILLING] -= 1
        for p in range(place, c[PREFILLING]):
            s.prefill[p] = s.prefill[p + 1]
    _leave(s, request)
    _release(s, shape, request, computed)
    s.requests[request, COMPUTED] = 0
    s.requests[request, WAIT_NEXT] = c[WAIT_HEAD]
    c[WAIT_HEAD] = request
    if c[WAIT_TAIL] < 0:
        c[WAIT_TAIL] = request
    c[WAITING] += 1
    c[PREEMPTIONS] += 1


@compiled
def _blocks_wanted(s, shape, chunks):
    """Blocks that the running requests' next tokens need; ``chunks`` gets what each prefilling one computes."""
    block, c = shape[BLOCK], s.count
    wanted = s.phase[(-c[DECODES]) % block]
    budget = shape[BUDGET] - c[DECODING]
    for place in range(c[PREFILLING]):
        request = s.prefill[place]
        chunks[place] = min(budget, s.requests[request, NEED] - s.requests[request, COMPUTED])
        budget -= chunks[place]
        wanted += (s.requests[request, COMPUTED] + chunks[place] + block - 1) // block - (
            s.requests[request, COMPUTED] + block - 1
        ) // block
    return wanted, budget


@compiled
def _admit(s, shape, chunks, budget):
    """Admit waiting requests in their order while there are tokens, places and blocks; the first that cannot blocks."""
    c, block = s.count, shape[BLOCK]
    while c[WAIT_HEAD] >= 0 and budget > 0 and c[RUNNING] < shape[MAX_SEQS]:
        request = c[WAIT_HEAD]
        entry = s.entry_of_key[s.requests[request, KEY]] if shape[PREFIX_CACHE] else -1
        hit = min(s.entries[entry, E_BLOCKS], (s.requests[request, NEED] - 1) // block) * block if entry >= 0 else 0
        chunk = min(budget, s.requests[request, NEED] - hit)
        blocks = (hit + chunk + block - 1) // block
        if c[USED] + blocks > shape[CAPACITY]:
            break
        if entry >= 0:
            _entry_drop(s, entry)
        c[WAIT_HEAD] = s.requests[request, WAIT_NEXT]
        if c[WAIT_HEAD] < 0:
            c[WAIT_TAIL] = -1
        c[WAITING] -= 1
        c[USED] += blocks
        c[HITS] += hit
        # Now, and not at the step's end: the next in line must not hit what this one overwrites.
        _evict(s, shape[CAPACITY])
        s.requests[request, COMPUTED] = hit
        s.requests[request, RUN_PREV], s.requests[request, RUN_NEXT] = c[RUN_TAIL], -1
        if c[RUN_TAIL] >= 0:
            s.requests[c[RUN_TAIL], RUN_NEXT] = request
        c[RUN_TAIL] = request
        c[RUNNING] += 1
        s.prefill[c[PREFILLING]] = request
        chunks[c[PREFILLING]] = chunk
        c[PREFILLING] += 1
        budget -= chunk


@compiled
def card_s(cost, tokens, kv, pairs):
    """The card's share of a step, s."""
    knee = cost[KNEE]
    weights = cost[WEIGHTS] * (1.0 + cost[BATCH_LOSS] * tokens / (tokens + HALF_LOSS_TOKENS))
    took = cost[BASE] + (weights**knee + (cost[COMPUTE] * tokens) ** knee) ** (1.0 / knee)
    return took + cost[PER_KV] * kv + cost[PER_TOKEN] * tokens + cost[PER_PAIR] * pairs


@compiled
def _mixed_step(s, shape, cost, chunks):
    """One step that holds prefill; who completes it emits a token and decodes from the next step on."""
    c, block = s.count, shape[BLOCK]
    prefill, pairs, kv = 0, 0.0, c[KV] + c[DECODING]
    for place in range(c[PREFILLING]):
        before, chunk = s.requests[s.prefill[place], COMPUTED], chunks[place]
        prefill += chunk
        pairs += chunk * (before + 0.5 * chunk)
        kv += before + chunk
    # The formula of StepCosts.
    took = max(cost[FLOOR], card_s(cost, prefill + c[DECODING], kv, pairs)) + cost[PER_SEQ] * c[DECODING]
    s.clock[0] += took + cost[MIXED] if prefill > 0 else took
    now = s.clock[0] + cost[OUT]
    c[DECODES] += 1
    c[STEPS] += 1
    c[KV] += c[DECODING]
    kept = 0
    for place in range(c[PREFILLING]):
        request = s.prefill[place]
        s.requests[request, COMPUTED] += chunks[place]
        if s.requests[request, COMPUTED] < s.requests[request, NEED]:
            s.prefill[kept] = request
            kept += 1
            continue
        if s.requests[request, LEFT] == s.requests[request, ANSWER]:
            s.times[request, FIRST] = now
        s.requests[request, LEFT] -= 1
        s.requests[request, JOINED] = c[DECODES]
        s.requests[request, ENDS] = c[DECODES] + s.requests[request, LEFT]
        s.phase[(s.requests[request, NEED] - c[DECODES]) % block] += 1
        c[DECODING] += 1
        c[KV] += s.requests[request, NEED]
        c[HEAP] += 1
        _heap_set(s, c[HEAP] - 1, request)
        _sift(s, c[HEAP] - 1)
    c[PREFILLING] = kept


@compiled
def _steps_that_fit(s, shape, steps):
    """How many decode steps in a row find their blocks, at most ``steps``, and the blocks that they take."""
    c, block = s.count, shape[BLOCK]
    free = shape[CAPACITY] - c[USED]
    # A block's worth of steps takes a block a request, whatever their phases.
    whole = min(steps // block, free // c[DECODING])
    taken, number = whole * c[DECODING], whole * block
    while number < steps:
        more = s.phase[(-(c[DECODES] + number)) % block]
        if taken + more > free:
            break
        taken += more
        number += 1
    return number, taken


@compiled
def _decode_stretch(s, shape, cost, stop):
    """Decode steps with the same members until one ends, blocks run short, or a step would start at ``stop``."""
    c = s.count
    card = card_s(cost, c[DECODING], c[KV] + c[DECODING], 0.0)
    growth = cost[PER_KV] * c[DECODING]
    steps = s.requests[s.heap[0], ENDS] - c[DECODES]
    if card < cost[FLOOR]:
        # The host is slower than the card until the KV has grown: steps of one length up to there.
        if growth > 0:
            steps = min(steps, max(1, math.ceil((cost[FLOOR] - card) / growth)))
        card, growth = cost[FLOOR], 0.0
    first = card + cost[PER_SEQ] * c[DECODING]
    gap = stop - s.clock[0]
    if steps > 1 and gap < steps * first + growth * steps * (steps - 1) / 2:
        if growth > 0:
            half = first - growth / 2
            reach = (math.sqrt(half * half + 2 * growth * gap) - half) / growth
        else:
            reach = gap / first
        steps = max(1, min(steps, math.ceil(reach)))
    steps, taken = _steps_that_fit(s, shape, steps)
    s.clock[0] += steps * first + growth * steps * (steps - 1) / 2
    c[DECODES] += steps
    c[STEPS] += steps
    c[KV] += steps * c[DECODING]
    c[USED] += taken


@compiled
def _finish(s, shape, cost):
    """Let go of every request whose last token came with the step that ended now."""
    c = s.count
    while c[HEAP] > 0 and s.requests[s.heap[0], ENDS] <= c[DECODES]:
        request = s.heap[0]
        _heap_remove(s, request)
        computed = _stop_decoding(s, shape, request)
        _leave(s, request)
        _release(s, shape, request, computed)
        s.times[request, LAST] = s.clock[0] + cost[OUT]
        c[DONE] += 1


@compiled
def advance(s, shape, cost, until, chunks):
    """Make every step that starts before ``until``; requests are those pushed so far, in order of arrival."""
    c = s.count
    while True:
        while c[NEXT] < c[PUSHED] and s.times[c[NEXT], AVAIL] <= s.clock[0]:
            request = c[NEXT]
            s.requests[request, WAIT_NEXT] = -1
            if c[WAIT_TAIL] >= 0:
                s.requests[c[WAIT_TAIL], WAIT_NEXT] = request
            else:
                c[WAIT_HEAD] = request
            c[WAIT_TAIL] = request
            c[WAITING] += 1
            c[NEXT] += 1
        if c[RUNNING] == 0 and c[WAIT_HEAD] < 0:
            if c[NEXT] >= c[PUSHED] or s.times[c[NEXT], AVAIL] >= until:
                return
            s.clock[0] = s.times[c[NEXT], AVAIL]
            continue
        if s.clock[0] >= until:
            return
        preempted = False
        wanted, budget = _blocks_wanted(s, shape, chunks)
        while c[USED] + wanted > shape[CAPACITY]:
            _preempt_last(s, shape)
            preempted = True
            wanted, budget = _blocks_wanted(s, shape, chunks)
        if not preempted:
            # Blocks of this step's decoding come before those of a newcomer.
            c[USED] += wanted
            _evict(s, shape[CAPACITY])
            _admit(s, shape, chunks, budget)
            c[USED] -= wanted
        if c[PREFILLING] > 0:
            c[USED] += wanted
            _mixed_step(s, shape, cost, chunks)
        else:
            stop = until
            if c[WAIT_HEAD] < 0 and c[RUNNING] < shape[MAX_SEQS] and c[NEXT] < c[PUSHED]:
                stop = min(stop, s.times[c[NEXT], AVAIL])
            if preempted:
                # One step, after which the line is looked at again.
                stop = s.clock[0]
            _decode_stretch(s, shape, cost, stop)
        c[PEAK] = max(c[PEAK], c[USED])
        _evict(s, shape[CAPACITY])
        _finish(s, shape, cost)
