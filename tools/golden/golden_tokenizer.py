#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference for serving/tokenizer/tokenizer.c: the Hugging Face `tokenizers` library itself.

golden_tokenizer.py DIR
    Trains two small tokenizers on the text below (byte-level as Llama 3's, SentencePiece-like as Llama 2's), and
    writes DIR/bytelevel.json, DIR/spm.json and DIR/tokenizer.json: variants of the two in the forms found in
    checkpoints, and for each the library's results for a list of texts, which make check compares.

golden_tokenizer.py --oracle WORK
    Computes the results for random texts. Reads WORK/N.json, tokenizer files, and WORK/in:
        records of  u8 tokenizer, u8 flags, u32 bytes, text      (little-endian)
    and writes WORK/out:
        records of  u32 ids, i32 each, u32 bytes, decoded text
    flags: 1 add special tokens around the text, 2 parse special tokens in the text, 4 omit them when decoding,
    8 the text is a list of i32 ids, to be decoded only.
    Exits with status 77 if the library is not installed or too old.

Needs: pip install tokenizers==0.23.3
"""
import copy
import json
import os
import struct
import sys

try:
    import tokenizers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
except ImportError as e:
    print("tokenizers: %s" % e)
    sys.exit(77)
# before 0.23, added tokens were decoded to their spelling, not to the text they match
if [int(n) for n in tokenizers.__version__.split(".")[:2]] < [0, 23]:
    print("tokenizers: 0.23 or newer is needed, this is " + tokenizers.__version__)
    sys.exit(77)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
             r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

CORPUS = """The cluster is a group of thread blocks that run at the same time on neighbouring multiprocessors.
Each block can read and write the shared memory of the others, and that is faster than going through memory.
A kernel that keeps its partial sums on the chip does not need to write them out and to read them back again.
We measure the time of each exchange, the bandwidth of each link, and the share of the ceiling that is reached.
When the tokens of a request have been generated, the pages that held its keys and values are given back.
It's what they've said; we're sure they'll do it, I'm told, and she'd agree: that isn't the engine's fault.
int main(int argc, char **argv)\n{\n\tfor (int i = 0; i < argc; i++)\n\t\tprintf("%s\\n", argv[i]);\n\treturn 0;\n}
static inline float max(float a, float b)\n{\n\treturn a > b ? a : b;\n}\n#include <stdio.h>\n#define N 1024\n
def forward(self, x):\n    h = self.norm(x)\n    return x + self.mlp(h) * 0.5  # residual\n
one plus two is three; 17 + 25 = 42; 1000 - 1 = 999; 3.14159; 2024-09-20 12:34:56; 0x7fff; 1,000,000
Le modèle répond à la question, où l'élève a reçu ça. Der Wärmeübergang ist größer als früher gedacht.
El niño comió piñas mañana. Příliš žluťoučký kůň úpěl ďábelské ódy. Он читает быстрее, чем пишет.
模型读取检查点并生成文本。注意力的键和值存放在分页的缓存中。東京は日本の首都です。ひらがなとカタカナ。
한국어 문장도 토큰으로 나뉜다. שלום עולם. مرحبا بالعالم. ภาษาไทยไม่มีช่องว่าง 😀 😃 👍 👨‍👩‍👧 🇩🇪 → ≤ ∑ €
"""

TEXTS = [
    "", " ", "a", "Hello, world!", "The kernel's pages aren't read; we've measured: they'LL be 'S'Top 'ſ.",
    "for (int i = 0; i < n; i++)\n\t\tsum += x[i] * 0.5f;\t// 2 spaces  here\n\n\n}", "    indented\n        more\r\n\r\n  \t end   ",
    " leading", "trailing ", "  two  spaces   three    four     ", "\n\n\nnew\n lines \n", "\u00a0nbsp\u3000wide\u2009thin\u180evowel\u0085next",
    "1234567890 12 345 6789 ١٢٣ ½ Ⅷ 四 ²", "3.14159e-10, 0xDEADBEEF, 1_000_000", "naïve café e\u0301 n\u0303 a\u0323\u0302 \u1ea5 \u212b",
    "Příliš žluťoučký kůň", "模型读取检查点,東京は日本の首都です。", "한국어 \u1112\u1161\u11ab 문장", "שלום עולם مرحبا ภาษาไทย",
    "😀👍🏽 👨‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️‍🔥 \u200d\u200d\u200d", "∑∫≤≥→ €100 £5 «quoted» — … ﬁne ㎏ ①", "\u0000nul\u0001\u007f",
    "<s>text</s> <unk> <0x41> ▁under▁", "<|begin_of_text|>system<|eot_id|>\n\nHi<|eot_id|> <|end_of_text|>", "<|eot_id|", "tool_call tools [CALL]x [CALL] y",
    "\ua7cb\U0001e030\U000105c9\U00031350\U0001fae9\u0897", "\U0010ffff\ue000\ufdd0\ufffd", "x" * 60, "ab" * 40, "^" * 70, "\u0301" * 9 + "\u0316\u0345\u0334",
    "https://example.org/a?b=c&d=%20e#f", "I'm\u2019s DON'T we'Re", "aaa  \n  bbb\t\tccc \u2028 ddd", "ͅΑ ΐ ﷺ ｶﾞ",
    b"\xff\xfe broken", b"cut \xe4\xbd", b"\xe4\xbdA\xf0\x9f\x98 \xc3(\xed\xa0\x80\xc0\xaf\xf5", b"\xf0\x9f\x98\x80\xf0\x9f", b"\x80\x80\xbf ok \xe2\x82\xac\xe2\x82",
]

BYTE_TOKENS = ["<0x%02X>" % b for b in range(256)]


def added(content, token_id, special=True, **flags):
    token = {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": special}
    token.update(flags)
    return token


def train(pre_tokenizer, alphabet, size):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizer
    tok.train_from_iterator(CORPUS.splitlines(keepends=True),
                            trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    model = json.loads(tok.to_str())["model"]
    tokens = [t for t, _ in sorted(model["vocab"].items(), key=lambda kv: kv[1])]
    return tokens, [list(m) for m in model["merges"]]


def tokenizer(tokens, merges, **parts):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}
    model.update(parts.pop("model", {}))
    out = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
           "pre_tokenizer": None, "post_processor": None, "decoder": None}
    out.update(parts)
    out["model"] = model
    return out


def template(name, token_id):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [token_id], "tokens": [name]}}}


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(name, *parts):
    return {"type": "Sequence", name: list(parts)}


def make_bytelevel():
    tokens, merges = train(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
                           sorted(pre_tokenizers.ByteLevel.alphabet()), 640)
    n = len(tokens)
    return tokenizer(
        tokens, merges,
        added_tokens=[added("<|begin_of_text|>", n), added("<|end_of_text|>", n + 1), added("<|eot_id|>", n + 2)],
        pre_tokenizer=sequence("pretokenizers", split(LLAMA3), byte_level()),
        post_processor=sequence("processors", byte_level(True, True), template("<|begin_of_text|>", n)),
        decoder=byte_level(True, True), model={"ignore_merges": True})


def make_spm():
    tokens, merges = train(pre_tokenizers.Metaspace(), ["▁"], 560)
    head = ["<unk>", "<s>", "</s>"] + BYTE_TOKENS
    return tokenizer(
        head + [t for t in tokens if t not in head], merges,
        added_tokens=[added("<unk>", 0), added("<s>", 1), added("</s>", 2)],
        normalizer=sequence("normalizers", {"type": "Prepend", "prepend": "▁"},
                            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
        post_processor=template("<s>", 1),
        decoder=sequence("decoders", {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                         {"type": "ByteFallback"}, {"type": "Fuse"},
                         {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
        model={"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True})


def variants(byte_size, spm_size):
    """(name, base, patch): patch has the members of the file to replace; "model" is merged into the model,
    "rename" renames tokens of the vocabulary, "string_merges" writes merges as "a b".
    """
    b, s = byte_size, spm_size
    space = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    underline = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    yield "llama3", "bytelevel", {}
    yield "qwen2", "bytelevel", {
        "normalizer": {"type": "NFC"}, "pre_tokenizer": sequence("pretokenizers", split(QWEN2), byte_level()),
        "post_processor": byte_level(), "model": {"ignore_merges": False}, "string_merges": True}
    yield "gpt2", "bytelevel", {
        "pre_tokenizer": byte_level(True, True), "post_processor": byte_level(),
        "model": {"ignore_merges": False, "unk_token": "", "continuing_subword_prefix": "", "end_of_word_suffix": ""}}
    yield "o200k", "bytelevel", {"pre_tokenizer": sequence("pretokenizers", split(O200K, "Removed", True), byte_level())}
    yield "deepseek3", "bytelevel", {
        "pre_tokenizer": sequence("pretokenizers", split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK3),
                                  byte_level())}
    yield "deepseek1", "bytelevel", {
        "normalizer": sequence("normalizers"),
        "pre_tokenizer": sequence("pretokenizers", split(r"[\r\n]"), split(r"\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+"), split(r"\s+$"),
                                  split(r"[\p{Han}\p{Hiragana}]+", "Contiguous"), {"type": "Digits", "individual_digits": True},
                                  byte_level())}
    yield "digits", "bytelevel", {"pre_tokenizer": sequence("pretokenizers", {"type": "Digits", "individual_digits": False},
                                                            byte_level(False, True))}
    yield "added", "bytelevel", {
        "normalizer": {"type": "NFKC"},
        "added_tokens": [added("<|begin_of_text|>", b), added("<|eot_id|>", b + 1, lstrip=True, rstrip=True),
                         added("tool", b + 2, False, single_word=True), added("[CALL]", b + 3, False, lstrip=True, normalized=True),
                         added("ﬁ", b + 4, False, normalized=True), added("\n", b + 5, False, rstrip=True),
                         added("  ", b + 6, False), added("    ", b + 7, False), added("of", b + 8, False), added("a", 64, True, normalized=True, rstrip=True)]}
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield ("split_%s%s" % (behavior.lower(), "_inverted" if invert else ""), "bytelevel",
                   {"normalizer": {"type": "NFD"},
                    "pre_tokenizer": sequence("pretokenizers", split(r"\s|[aeiou]|(?m:.)\d*?", behavior, invert), byte_level())})
    yield "split_string", "bytelevel", {
        "normalizer": {"type": "NFKD"},
        "pre_tokenizer": sequence("pretokenizers", split("a", "MergedWithNext", False, "String"), byte_level())}
    yield "classes", "bytelevel", {
        "pre_tokenizer": sequence("pretokenizers", split(r"\w+|\d|[^\s\w]|\h|\S"), byte_level())}
    yield "llama2", "spm", {}
    yield "llama2_first", "spm", {"normalizer": None, "pre_tokenizer": dict(meta, prepend_scheme="first", split=False)}
    yield "split_first", "spm", {"normalizer": None, "pre_tokenizer": sequence(
        "pretokenizers", split("[ae]"), dict(meta, prepend_scheme="first"))}
    yield "metaspace", "spm", {"normalizer": {"type": "NFKC"}, "pre_tokenizer": meta, "decoder": meta, "string_merges": True}
    yield "metaspace_never", "spm", {"normalizer": None, "pre_tokenizer": dict(meta, prepend_scheme="never"),
                                     "decoder": dict(meta, prepend_scheme="never")}
    yield "yi", "spm", {"normalizer": underline, "decoder": sequence("decoders", space, {"type": "ByteFallback"}, {"type": "Fuse"})}
    yield "gemma", "spm", {"normalizer": underline, "pre_tokenizer": split(" ", "MergedWithPrevious", False, "String"),
                           "decoder": sequence("decoders", space, {"type": "ByteFallback"}, {"type": "Fuse"})}
    yield "added_spm", "spm", {
        "added_tokens": [added("<unk>", 0, normalized=True), added("<s>", 1), added("</s>", 2, True, lstrip=True, normalized=True),
                         added("[CALL]", s, False, rstrip=True, normalized=True), added("tool", s + 1, False, single_word=True)]}
    yield "unk", "spm", {"model": {"byte_fallback": False, "fuse_unk": False}, "decoder": None,
                         "normalizer": sequence("normalizers", {"type": "Strip", "strip_left": True, "strip_right": True}, underline)}
    yield "unk_fused", "spm", {"model": {"byte_fallback": False}, "decoder": sequence("decoders", {"type": "Fuse"}),
                               "normalizer": {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": "▁"}}
    yield "no_unk", "spm", {"model": {"byte_fallback": False, "unk_token": None}}
    # some bytes have no token; one has a spelling that only the library's number parser accepts
    renames = {"<0x%02X>" % x: "<byte %02X>" % x for x in [0x5e, *range(0xa0, 0xc0)]}
    yield "half_fallback", "spm", {"rename": dict(renames, **{"<0x41>": "<0x+b>"})}


def patched(base, patch):
    out = copy.deepcopy(base)
    for key, value in patch.items():
        if key == "model":
            out["model"].update(value)
        elif key == "rename":
            out["model"]["vocab"] = {value.get(t, t): i for t, i in out["model"]["vocab"].items()}
        elif key == "string_merges":
            out["model"]["merges"] = [" ".join(m) for m in out["model"]["merges"]]
        else:
            out[key] = value
    return out


def text_of(raw):
    return raw.decode("utf-8", errors="replace")


def write(path, value, indent=None):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=indent, separators=(",", ":"))
        f.write("\n")


def goldens(folder):
    os.makedirs(folder, exist_ok=True)
    bases = {"bytelevel": make_bytelevel(), "spm": make_spm()}
    for name, base in bases.items():
        write(os.path.join(folder, name + ".json"), base)
    raw = [t if isinstance(t, bytes) else t.encode("utf-8") for t in TEXTS]
    out = {"texts": [t if isinstance(t, str) else {"hex": t.hex()} for t in TEXTS], "variants": []}
    for i, (name, base, patch) in enumerate(variants(*(len(bases[n]["model"]["vocab"]) for n in ("bytelevel", "spm")))):
        tok = Tokenizer.from_str(json.dumps(patched(bases[base], patch)))
        row = {"name": name, "base": base, "patch": patch, "cases": []}
        # all texts for the two most important variants; for the others a few texts, different ones each time
        for k in range(0 if not patch else i % 5, len(raw), 5 if patch else 1):
            text = text_of(raw[k])
            tok.encode_special_tokens = False
            ids = tok.encode(text).ids
            tok.encode_special_tokens = True
            plain = tok.encode(text, add_special_tokens=False).ids
            # null: the decoded text equals the text
            as_is = raw[k] == text.encode("utf-8")
            decoded = [tok.decode(ids, skip_special_tokens=False), tok.decode(ids)]
            row["cases"].append([k, ids, None if plain == ids else plain] +
                                [None if as_is and d == text else d for d in decoded])
        out["variants"].append(row)
    write(os.path.join(folder, "tokenizer.json"), out)
    return 0


def oracle(work):
    toks = {}
    with open(os.path.join(work, "in"), "rb") as f:
        data = f.read()
    at, out = 0, []
    while at < len(data):
        which, flags, size = struct.unpack_from("<BBI", data, at)
        raw = data[at + 6:at + 6 + size]
        at += 6 + size
        if (which, flags & 2) not in toks:
            tok = Tokenizer.from_file(os.path.join(work, "%d.json" % which))
            tok.encode_special_tokens = not flags & 2
            toks[which, flags & 2] = tok
        tok = toks[which, flags & 2]
        if flags & 8:
            ids = struct.unpack("<%di" % (size // 4), raw)
        else:
            ids = tok.encode(text_of(raw), add_special_tokens=bool(flags & 1)).ids
        decoded = tok.decode(ids, skip_special_tokens=bool(flags & 4)).encode("utf-8")
        out.append(struct.pack("<I%diI" % len(ids), len(ids), *ids, len(decoded)) + decoded)
    with open(os.path.join(work, "out"), "wb") as f:
        f.write(b"".join(out))
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--oracle":
        sys.exit(oracle(sys.argv[2]))
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(goldens(sys.argv[1]))
