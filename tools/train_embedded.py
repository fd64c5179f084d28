#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the embedded model: a small Llama checkpoint whose answers can be scored exactly.

Makes    serving/embedded/{config.json, model.safetensors, tokenizer.json,
         generation_config.json, eval.jsonl}: about 2.3 M parameters in bf16, its tokenizer, and
         held-out questions, each with its only correct answer.
Command  python3 tools/train_embedded.py --seconds 135 --out serving/embedded
         (one H200, 16 CPU cores, about three minutes in all; any CUDA device will do with more
         seconds. --device cpu --steps 3 exercises every line without one.)
Needs    Python 3.11, PyTorch 2.5, transformers 4.56, tokenizers 0.20, safetensors, numpy.

The questions, and how the held-out ones are kept separate: tools/questions.py.

Form.  A prompt is either "question\\n" with the answer "405", or "question" with the answer " 405"; both are
trained, eval.jsonl has the first form.  The answer ends with <|end_of_text|>.  Greedy decoding gives an
answer exactly if every token of it, and the end, is the argmax given the preceding ones: scoring therefore
takes one forward pass per prompt.

The checkpoint in the tree: 5327 steps of 96256 tokens in 135 s, last loss 0.0011; eval.jsonl 100.0%
in bf16 and in float32, and 99.9% of 2000 held-out questions (arith 99.0, the other nine 100.0).

The tokenizer, the questions and the order of the training data are reproducible (seeded, taken from the
workers in turn).  The weights are reproducible up to the order of floating-point sums on the GPU, and only
with a fixed --steps: with --seconds the schedule follows the clock.
"""

import argparse
import json
import math
import multiprocessing as mp
import os
import random
import sys
import time
from pathlib import Path

import numpy as np

from questions import FAMILIES, SHORT, held_problem, long_source, short_problem

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
VOCAB = 512
# The split pattern of Llama 3, except that each digit is a piece: \p{N}{1,3} would hide place value.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
MAX_NEW_TOKENS = 32
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": VOCAB - 2,
    "eos_token_id": VOCAB - 1,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 320,
    "max_position_embeddings": 2048,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": VOCAB,
}

# ---- tokenizer ---------------------------------------------------------------------------------


def train_tokenizer(path):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    rng = random.Random("tokenizer")
    texts = []
    for _ in range(20000):
        texts.append("{1}\n{2}\n".format(*short_problem(rng)))
    for kind in ("lookup", "fewshot") * 150:
        source = long_source(rng, kind, 500)
        problems = [p for p in (source.problem(rng) for _ in range(4)) if p]
        texts.append(source.head + "".join("{}\n{}\n".format(*p) for p in problems))
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB - 2, show_progress=False, special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.add_special_tokens([BOS, EOS])
    tok.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B",
        special_tokens=[(BOS, tok.token_to_id(BOS))])
    if tok.get_vocab_size() != VOCAB or tok.token_to_id(BOS) != VOCAB - 2:
        sys.exit("train_embedded: the tokenizer does not have %d entries" % VOCAB)
    tok.save(str(path))
    return tok


# ---- training data -----------------------------------------------------------------------------

# A step has rows of every width: single problems in the narrow ones, documents in the others.
WIDTHS = {48: 640, 128: 128, 256: 64, 1024: 32}
LONG_KINDS = ("worksheet", "lookup", "fewshot"), (0.4, 0.35, 0.25)
STEPS_PER_CHUNK = 4


def documents(rng, width, rows):
    """Lists of pieces [(text, is_answer, counts)], each list slightly longer than a row."""
    for _ in range(rows):
        newline = rng.random() < 0.5
        before, gap = ("\n", "") if newline else ("", " ")
        if width == min(WIDTHS):
            _, prompt, answer = short_problem(rng)
            yield [(prompt + before, False, False), (gap + answer, True, True)]
            continue
        source = long_source(rng, rng.choices(*LONG_KINDS)[0], width)
        pieces, chars, start = [], len(source.head), source.head
        while chars < 3 * width:      # a token has fewer than two characters on average
            problem = source.problem(rng)
            if not problem:
                break
            prompt, answer = problem
            pieces.append((start + prompt + before, False, False))
            pieces.append((gap + answer, True, getattr(source, "clear", True)))
            chars += len(prompt) + len(answer)
            start = "\n"
        yield pieces


def fill_rows(tok, rng, width, rows):
    """(tokens, labels) [rows, width]; label: the token that the model must predict there, or -1.

    After an answer the label is the end of text even if the document continues: so the model learns to
    stop although rows hold many problems.
    """
    tokens = np.full((rows, width), tok.token_to_id(EOS), np.int16)
    labels = np.full((rows, width), -1, np.int16)
    docs = list(documents(rng, width, rows))
    encoded = iter(tok.encode_batch_fast([text for doc in docs for text, _, _ in doc],
                                         add_special_tokens=False))
    bos, eos = tok.token_to_id(BOS), tok.token_to_id(EOS)
    for r, doc in enumerate(docs):
        at = 1
        tokens[r, 0] = bos
        for _, is_answer, counts in doc:
            ids = next(encoded).ids
            end = at + len(ids)
            if end <= width:
                tokens[r, at:end] = ids
                if is_answer and counts:
                    labels[r, at - 1:end - 1] = ids
                    labels[r, end - 1] = eos
            at = end                # a piece that does not fit ends the row: `at` stays beyond it
    return tokens, labels


def worker(path, seed, first, stride, queue):
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tok = Tokenizer.from_file(str(path))
    chunk = first
    while True:
        rng = random.Random(f"train {seed} {chunk}")
        queue.put({w: fill_rows(tok, rng, w, n * STEPS_PER_CHUNK) for w, n in WIDTHS.items()})
        chunk += stride


class Feed:
    """Batches in an order independent of the workers' speed; each row is used once."""

    def __init__(self, path, seed, num_workers):
        self.queues = [mp.Queue(maxsize=6) for _ in range(num_workers)]
        self.workers = [mp.Process(target=worker, args=(path, seed, i, num_workers, q), daemon=True)
                        for i, q in enumerate(self.queues)]
        for w in self.workers:
            w.start()
        self.turn, self.ready, self.waited = 0, [], 0.0

    def next(self):
        """[(tokens, labels)], one pair per width"""
        if not self.ready:
            t0 = time.monotonic()
            chunk = self.queues[self.turn % len(self.queues)].get()
            self.waited += time.monotonic() - t0
            self.turn += 1
            for i in reversed(range(STEPS_PER_CHUNK)):
                self.ready.append([[x[i * n:(i + 1) * n] for x in chunk[w]]
                                   for w, n in WIDTHS.items()])
        return self.ready.pop()

    def close(self):
        for w in self.workers:
            w.terminate()


# ---- model -------------------------------------------------------------------------------------


def build_model(torch):
    """Llama with the parameter names of transformers, without its per-call overhead."""
    from torch import nn
    from torch.nn import functional as F

    c = CONFIG
    hidden, inner, hd = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    num_q, num_kv, layers = (c["num_attention_heads"], c["num_key_value_heads"],
                             c["num_hidden_layers"])

    def linear(fan_in, fan_out, scale=1.0):
        m = nn.Linear(fan_in, fan_out, bias=False)
        nn.init.normal_(m.weight, std=scale / math.sqrt(fan_in))
        return m

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden))

        def forward(self, x):
            return F.rms_norm(x, (hidden,), self.weight.to(x.dtype), c["rms_norm_eps"])

    def rotate(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj = linear(hidden, num_q * hd), linear(hidden, num_kv * hd)
            self.v_proj = linear(hidden, num_kv * hd)
            self.o_proj = linear(num_q * hd, hidden, 1 / math.sqrt(2 * layers))

        def forward(self, x, cos, sin):
            n, t, _ = x.shape
            q, k, v = (p(x).view(n, t, -1, hd).transpose(1, 2)
                       for p in (self.q_proj, self.k_proj, self.v_proj))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            k, v = (y.repeat_interleave(num_q // num_kv, 1) for y in (k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj(y.transpose(1, 2).reshape(n, t, -1))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj = linear(hidden, inner), linear(hidden, inner)
            self.down_proj = linear(inner, hidden, 1 / math.sqrt(2 * layers))

        def forward(self, x):
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
            self.self_attn, self.mlp = Attention(), Mlp()

        def forward(self, x, cos, sin):
            x = x + self.self_attn(self.input_layernorm(x), cos, sin)
            return x + self.mlp(self.post_attention_layernorm(x))

    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(c["vocab_size"], hidden)
            nn.init.normal_(self.embed_tokens.weight, std=1 / math.sqrt(hidden))
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.norm = Norm()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = Body()
            freq = c["rope_theta"] ** (-torch.arange(0, hd, 2).double() / hd)
            angle = torch.arange(max(WIDTHS)).double()[:, None] * freq
            self.register_buffer("cos", angle.cos().float(), persistent=False)
            self.register_buffer("sin", angle.sin().float(), persistent=False)

        def forward(self, ids):
            # The residual stream has the type that the weights have in inference.
            dtype = torch.bfloat16 if torch.is_autocast_enabled(ids.device.type) else torch.float32
            t = ids.shape[1]
            cos, sin = self.cos[:t].to(dtype), self.sin[:t].to(dtype)
            weight = self.model.embed_tokens.weight
            x = F.embedding(ids, weight).to(dtype)
            for layer in self.model.layers:
                x = layer(x, cos, sin)
            return F.linear(self.model.norm(x), weight)

    return Model()


# ---- scoring -----------------------------------------------------------------------------------


def encode_questions(tok, questions):
    """[(family, ids, answer_start)], ids = BOS prompt answer EOS"""
    eos = tok.token_to_id(EOS)
    out = []
    for q in questions:
        prompt = tok.encode(q["prompt"]).ids
        answer = tok.encode(q["answer"], add_special_tokens=False).ids
        out.append((q["task"], prompt + answer + [eos], len(prompt)))
    return out


def score(torch, logits_of, encoded, device):
    """{family: [right, asked]} of greedy decoding."""
    result = {f: [0, 0] for f in FAMILIES}
    order = sorted(encoded, key=lambda e: len(e[1]))
    while order:
        # Right padding is harmless: attention is causal, and padded positions are ignored.
        rows = max(1, 65536 // len(order[-1][1]))
        batch, order = order[-rows:], order[:-rows]
        width = max(len(e[1]) for e in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        for i, (_, e, _) in enumerate(batch):
            ids[i, :len(e)] = torch.tensor(e)
        with torch.no_grad():
            best = logits_of(ids.to(device)).argmax(-1).cpu()
        for i, (family, e, start) in enumerate(batch):
            result[family][0] += best[i, start - 1:len(e) - 1].tolist() == e[start:]
            result[family][1] += 1
    return result


def show(title, result):
    right, asked = (sum(r[i] for r in result.values()) for i in (0, 1))
    each = "  ".join(f"{f} {100 * r / n:.1f}" for f, (r, n) in result.items() if n)
    print(f"{title}: {100 * right / asked:.2f}% of {asked}   {each}", flush=True)
    return right / asked


def make_questions(tok, per_family, seed):
    """Held-out questions, the families in turn, so that any prefix is a fair sample."""
    rng = random.Random(f"held {seed}")
    seen, rows = set(), []
    for _ in range(per_family):
        for family in FAMILIES:
            while True:
                prompt, answer = held_problem(rng, family)
                fits = len(tok.encode(answer).ids) <= MAX_NEW_TOKENS and \
                    len(tok.encode(prompt).ids) <= max(WIDTHS) - MAX_NEW_TOKENS
                if fits and prompt not in seen:
                    break
            seen.add(prompt)
            rows.append({"task": family, "prompt": prompt, "answer": answer})
    return rows


# ---- training ----------------------------------------------------------------------------------


class Stepper:
    """One optimizer step.  On a GPU it is captured into a graph: the model is so small that launching its
    kernels one by one takes twice as long as running them."""

    def __init__(self, torch, model, args):
        self.torch, self.model, self.on_gpu = torch, model, args.device == "cuda"
        matrices = [p for p in model.parameters() if p.ndim == 2]
        vectors = [p for p in model.parameters() if p.ndim < 2]
        self.opt = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
            lr=torch.tensor(args.lr, device=args.device), betas=(0.9, 0.98), foreach=False,
            fused=self.on_gpu, capturable=self.on_gpu)
        # The cache of cast weights must not outlive the pass in which it was captured.
        self.cast = torch.autocast(args.device, dtype=torch.bfloat16, cache_enabled=False)
        self.inputs = [[torch.zeros(n, w, dtype=torch.int16, device=args.device)
                        for _ in range(2)] for w, n in WIDTHS.items()]
        self.calls, self.graph = 0, None

    def compute(self):
        cross_entropy = self.torch.nn.functional.cross_entropy
        self.opt.zero_grad(set_to_none=True)
        # One mean over all the answers of the step, however they are distributed over the widths.
        targets = sum((labels >= 0).sum() for _, labels in self.inputs)
        total = 0.0
        for ids, labels in self.inputs:
            with self.cast:
                logits = self.model(ids.int())
            loss = cross_entropy(logits.float().flatten(0, 1), labels.long().flatten(),
                                 ignore_index=-1, reduction="sum") / targets
            loss.backward()
            total = total + loss.detach()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        return total

    def step(self, batches, lr):
        torch = self.torch
        for pair, batch in zip(self.inputs, batches):
            for mine, rows in zip(pair, batch):
                mine.copy_(torch.from_numpy(rows))
        for group in self.opt.param_groups:
            group["lr"].fill_(lr)
        self.calls += 1
        if not self.on_gpu:
            return self.compute()
        if self.calls <= 3:         # a capture requires that everything has run on a side stream before
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss = self.compute()
            torch.cuda.current_stream().wait_stream(side)
            return loss
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = self.compute()
        self.graph.replay()
        return self.loss.clone()


def train(torch, model, feed, args, dev_set):
    stepper = Stepper(torch, model, args)
    start, step, next_report, tail = time.monotonic(), 0, 0.1, []
    while True:
        elapsed = time.monotonic() - start
        done = step / args.steps if args.steps else elapsed / args.seconds
        if done >= next_report or done >= 1:
            next_report += 0.1
            mean = sum(float(x) for x in tail) / len(tail)
            if not math.isfinite(mean):
                sys.exit("train_embedded: the loss is no longer finite")
            with stepper.cast:
                result = score(torch, lambda ids: model(ids).float(), dev_set, args.device)
            show(f"[{100 * done:3.0f}%] {elapsed:6.1f} s, step {step}, mean loss {mean:.4f}, "
                 f"waited {feed.waited:.1f} s for data", result)
        if done >= 1:
            break
        lr = args.lr * min(1, (step + 1) / 200) * 0.5 * (1 + math.cos(math.pi * done))
        tail = tail[-99:] + [stepper.step(feed.next(), lr)]
        step += 1
        if step % 10 == 0 and args.device == "cuda":
            torch.cuda.synchronize()        # so that the clock includes all work
    tokens = step * sum(w * n for w, n in WIDTHS.items())
    print(f"trained {step} steps, {tokens / 1e6:.0f} M token slots, {elapsed:.1f} s, "
          f"mean loss of the last {len(tail)} steps {mean:.5f}", flush=True)


def write_checkpoint(torch, model, out):
    from safetensors.torch import save_file

    tensors = {k: v.detach().to(torch.bfloat16).cpu().contiguous()
               for k, v in model.state_dict().items()}
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps({
        "bos_token_id": CONFIG["bos_token_id"], "do_sample": False,
        "eos_token_id": CONFIG["eos_token_id"], "max_new_tokens": MAX_NEW_TOKENS}, indent=2) + "\n")
    print(f"{sum(t.numel() for t in tensors.values())} parameters, "
          f"{(out / 'model.safetensors').stat().st_size} bytes")


def verify(torch, out, tok, questions, dev_set, device):
    """Scores the written files with transformers; this result counts, not that of the model trained here."""
    from transformers import AutoModelForCausalLM

    accuracy = []
    for name in ("bfloat16", "float32"):
        model = AutoModelForCausalLM.from_pretrained(out, dtype=getattr(torch, name)).to(device)
        model.eval()

        def logits_of(ids, model=model):
            return model(input_ids=ids, use_cache=False).logits

        show(f"transformers {name}, wide held-out set", score(torch, logits_of, dev_set, device))
        encoded = encode_questions(tok, questions)
        accuracy.append(show(f"transformers {name}, eval.jsonl",
                             score(torch, logits_of, encoded, device)))
        cli = [{**q, "prompt": q["prompt"][:-1], "answer": " " + q["answer"]}
               for q in questions if q["task"] in SHORT]
        show(f"transformers {name}, asked without the newline",
             score(torch, logits_of, encode_questions(tok, cli), device))
        same = 0
        for q in questions[:10]:    # checks the shortcut of score() with real generation
            ids = torch.tensor([tok.encode(q["prompt"]).ids], device=device)
            new = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                 max_new_tokens=MAX_NEW_TOKENS,
                                 pad_token_id=CONFIG["eos_token_id"])[0, ids.shape[1]:]
            text = tok.decode(new.tolist())
            same += (text == q["answer"]) == (score(
                torch, logits_of, encode_questions(tok, [q]), device)[q["task"]][0] == 1)
        print(f"transformers {name}: generate() agrees with the score on {same} of 10", flush=True)
    return min(accuracy)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--out", type=Path, default=Path("serving/embedded"))
    ap.add_argument("--seconds", type=float, default=135, help="length of the training")
    ap.add_argument("--steps", type=int, help="instead of --seconds")
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    ap.add_argument("--eval-per-task", type=int, default=40)
    ap.add_argument("--wide-per-task", type=int, default=200)
    ap.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    ap.add_argument("--data-only", action="store_true", help="write only the tokenizer and eval.jsonl")
    args = ap.parse_args()

    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "tokenizer.json"
    tok = train_tokenizer(path)
    feed = None if args.data_only else Feed(path, args.seed, args.workers)
    questions = make_questions(tok, args.wide_per_task, args.seed)
    dev_set = encode_questions(tok, questions)
    questions = questions[:args.eval_per_task * len(FAMILIES)]
    with open(args.out / "eval.jsonl", "w", encoding="utf-8") as f:
        for q in questions:
            f.write(json.dumps(q) + "\n")
    lengths = [len(e) for _, e, _ in encode_questions(tok, questions)]
    print(f"eval.jsonl: {len(questions)} questions, {sum(lengths)} tokens, longest {max(lengths)}",
          flush=True)
    if args.data_only:
        return 0

    import torch

    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = False
    model = build_model(torch).to(args.device)
    train(torch, model, feed, args, dev_set[:64 * len(FAMILIES)])
    feed.close()
    write_checkpoint(torch, model, args.out)
    accuracy = verify(torch, args.out, tok, questions, dev_set, args.device)
    return 0 if accuracy > 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
