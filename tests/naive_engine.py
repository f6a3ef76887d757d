"""The same engine one step at a time, request by request, in plain Python: what the kernel is held against."""

from collections import OrderedDict


def serve(costs, shape, loads):
    """First and last token of every request of loads served in turn, as lists a load; and what happened."""
    engine = Naive(costs, shape)
    return [engine.run(load) for load in loads], engine.seen


class Naive:
    def __init__(self, costs, shape):
        self.k, self.shape = costs, shape
        self.block, self.capacity = shape.block_tokens, shape.kv_tokens // shape.block_tokens
        self.cache = OrderedDict()  # ("p", key) or ("a", number) -> blocks, oldest first
        self.number = 0
        self.seen = dict.fromkeys(("preempted", "hit", "evicted", "chunked", "blocked", "full"), 0)

    def blocks(self, tokens):
        return -(-tokens // self.block)

    def used(self):
        return sum(self.blocks(r["done"]) for r in self.running)

    def evict(self, used):
        while used + sum(self.cache.values()) > self.capacity:
            oldest = next(iter(self.cache))
            self.cache[oldest] -= 1
            self.seen["evicted"] += 1
            if not self.cache[oldest]:
                del self.cache[oldest]

    def release(self, r):
        full, prompt = r["done"] // self.block, min(r["done"], r["prompt"]) // self.block
        if self.shape.prefix_cache:
            self.number += 1
            if full - prompt:
                self.cache["a", self.number] = full - prompt
            if prompt:
                self.cache.pop(("p", r["key"]), None)
                self.cache["p", r["key"]] = prompt
            self.evict(self.used())

    def run(self, load):
        n = len(load.arrival_s)
        keys = range(n) if load.prompt is None else load.prompt
        asked = zip(load.arrival_s, load.input_tokens, load.output_tokens, keys, strict=True)
        requests = [
            {"id": i, "avail": a + self.k.api_s, "prompt": int(p), "out": int(o), "key": int(key), "need": int(p),
             "done": 0, "emitted": 0, "first": None, "last": None}
            for i, (a, p, o, key) in enumerate(asked)
        ]  # fmt: skip
        coming, self.waiting, self.running, now = list(requests), [], [], 0.0
        while coming or self.waiting or self.running:
            while coming and coming[0]["avail"] <= now:
                self.waiting.append(coming.pop(0))
            if not self.waiting and not self.running:
                now = coming[0]["avail"]
                continue
            now = self.step(now)
        return [r["first"] for r in requests], [r["last"] for r in requests]

    def scheduled(self):
        """What each running request computes next: a token, or a chunk of its prefill."""
        budget = self.shape.token_budget - sum(r["done"] >= r["need"] for r in self.running)
        plan = []
        for r in self.running:
            if r["done"] >= r["need"]:
                plan.append(1)
            else:
                plan.append(min(budget, r["need"] - r["done"]))
                budget -= plan[-1]
        return plan, budget

    def wanted(self, plan):
        return sum(self.blocks(r["done"] + c) for r, c in zip(self.running, plan, strict=True))

    def step(self, now):
        plan, budget = self.scheduled()
        preempted = False
        while self.wanted(plan) > self.capacity:
            last = self.running.pop()
            self.release(last)
            last["need"], last["done"] = last["prompt"] + last["emitted"], 0
            self.waiting.insert(0, last)
            self.seen["preempted"] += 1
            preempted = True
            plan, budget = self.scheduled()
        if not preempted:
            self.evict(self.wanted(plan))
            plan = self.admit(plan, budget)
        now += self.took(plan)
        for r, c in zip(list(self.running), plan, strict=True):
            decoding = r["done"] >= r["need"]
            r["done"] += c
            if decoding or r["done"] == r["need"]:
                r["emitted"] += 1
                r["need"] = r["done"] if decoding else r["need"]
                r["first"] = now + self.k.out_s if r["first"] is None else r["first"]
        self.evict(self.used())
        for r in sorted((r for r in self.running if r["emitted"] == r["out"]), key=lambda r: r["id"]):
            r["last"] = now + self.k.out_s
            self.running.remove(r)
            self.release(r)
        return now

    def admit(self, plan, budget):
        while self.waiting and budget > 0:
            if len(self.running) == self.shape.max_seqs:
                self.seen["full"] += 1
                break
            r = self.waiting[0]
            cached = self.cache.get(("p", r["key"]), 0) if self.shape.prefix_cache else 0
            hit = min(cached, (r["need"] - 1) // self.block) * self.block
            chunk = min(budget, r["need"] - hit)
            if self.wanted(plan) + self.blocks(hit + chunk) > self.capacity:
                self.seen["blocked"] += 1
                break
            self.cache.pop(("p", r["key"]), None)
            self.waiting.pop(0)
            r["done"] = hit
            self.running.append(r)
            plan = [*plan, chunk]
            budget -= chunk
            self.seen["hit"] += hit
            self.seen["chunked"] += chunk < r["need"] - hit
            self.evict(self.wanted(plan))
        return plan

    def took(self, plan):
        prefill = decoding = kv = 0
        pairs = 0.0
        for r, c in zip(self.running, plan, strict=True):
            kv += r["done"] + c
            if r["done"] >= r["need"]:
                decoding += 1
            else:
                prefill += c
                pairs += c * (r["done"] + c / 2)
        k, tokens = self.k, prefill + decoding
        weights = k.weights_s * (1 + k.batch_loss * tokens / (tokens + 8))
        card = k.base_s + (weights**k.knee + (k.compute_s * tokens) ** k.knee) ** (1 / k.knee)
        card += k.per_kv_token_s * kv + k.per_token_s * tokens + k.per_pair_s * pairs
        return max(k.floor_s, card) + k.per_seq_s * decoding + (k.mixed_s if prefill else 0.0)
