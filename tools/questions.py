# SPDX-License-Identifier: Apache-2.0
"""The questions of the embedded model: ten families, a held-out split, training documents.

Used by  tools/train_embedded.py; needs nothing but Python.

The families serve to check kernels, so a wrong kernel must cost accuracy that a test can see.  Seven are
single questions: arithmetic in digits and in words, multiplication in parts, comparing, counting, lists,
sorting.  Three need a long context: look-up among dozens of entries, a rule shown only by examples, and a
worksheet of solved problems before the question.  A page read from the wrong place, a position off by one
or a softmax that omits a key turns one digit into another: of 200 correctly answered questions, 31% remain
correct with keys rotated one position off, 14% with the previous key skipped, 25% with the previous page
of 16 lost, 47% with the first page lost.  With a softmax scale 0.8 of the right one 98% remain correct:
this error is caught by comparing logits instead.

The split.  A problem has a key that identifies it independently of its wording (the pair of operands, the
list to be sorted, the entry asked for).  One key in twenty, by CRC-32, is never trained on, and the
held-out questions have only these keys.  So no held-out prompt occurs in training, nor the same problem in
other words.  A key of None marks tables with too few members to leave some out (one-digit operands): they
are always trained on and never asked.
"""

import zlib

NOUNS = ("ant ape bat bee boar cat cod cow crab crow deer dog dove duck eel elk emu fox frog gnat "
         "goat hare hawk hen ibis jay kite lamb lark lion lynx mole moth mule newt owl pig pony "
         "ram rat seal slug swan toad wasp wolf wren yak").split()
COLOURS = "red blue green gold grey pink black white teal amber olive brown".split()
NAMES = "Ada Ben Cleo Dan Eva Finn Gus Hana Ivo June Kim Leo".split()
THINGS = "coins cards books pens eggs stamps shells nuts".split()
ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen").split()
TENS = "x x twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(n):
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else "")
    for unit, name in ((1000, "thousand"), (100, "hundred")):
        if n >= unit:
            rest = " " + in_words(n % unit) if n % unit else ""
            return f"{in_words(n // unit)} {name}{rest}"


def held_out(key):
    return zlib.crc32(key.encode()) % 20 == 0


def pick(rng, seq):
    return seq[int(rng.random() * len(seq))]


def number(rng, digits):
    """A number below 10^k, k uniform from 1 to digits: short numbers are as frequent as long ones."""
    return int(rng.random() * 10 ** (1 + int(rng.random() * digits)))


ADD = ("What is {a} + {b}?", "Compute {a} + {b}.", "{a} + {b} =", "Add {a} and {b}.",
       "What is {a} plus {b}?", "Find the sum of {a} and {b}.",
       "{n} has {a} {t} and finds {b} more. How many {t} does {n} have now?",
       "There are {a} {t} in one box and {b} in another. How many {t} are there in all?")
SUB = ("What is {a} - {b}?", "Compute {a} - {b}.", "{a} - {b} =", "Subtract {b} from {a}.",
       "What is {a} minus {b}?", "Take {b} away from {a}.",
       "{n} had {a} {t} and gave away {b}. How many {t} are left?",
       "Of {a} {t}, {b} are lost. How many {t} remain?")
ADD_WORDS = ("What is {a} plus {b}?", "Add {a} and {b}.", "Find the sum of {a} and {b}.",
             "In words, {a} plus {b} is what?")
SUB_WORDS = ("What is {a} minus {b}?", "Subtract {b} from {a}.", "Take {b} away from {a}.",
             "In words, {a} minus {b} is what?")


def sum_key(a, b, op):
    """The key of a sum; None for one-digit tables: always trained on, never asked."""
    if op == "-":
        a, b = a - b, b             # a - b = c is the same fact as c + b = a
    return None if a < 10 and b < 10 else f"sum {min(a, b)} {max(a, b)}"


def arith(rng):
    a, b = number(rng, 3), number(rng, 3)
    if rng.random() < 0.5:
        a, b = max(a, b), min(a, b)
        form, answer, op = pick(rng, SUB), a - b, "-"
    else:
        form, answer, op = pick(rng, ADD), a + b, "+"
    prompt = form.format(a=a, b=b, n=pick(rng, NAMES), t=pick(rng, THINGS))
    return sum_key(a, b, op), prompt, str(answer)


def words(rng):
    kind = rng.random()
    if kind < 0.5:
        a, b = number(rng, 2), number(rng, 2)
        if kind < 0.25:
            a, b = max(a, b), min(a, b)
            form, answer, op = pick(rng, SUB_WORDS), a - b, "-"
        else:
            form, answer, op = pick(rng, ADD_WORDS), a + b, "+"
        prompt = form.format(a=in_words(a), b=in_words(b))
        return sum_key(a, b, op), prompt[0].upper() + prompt[1:], in_words(answer)
    n = number(rng, 4)
    key = f"words {n}" if n >= 20 else None
    if kind < 0.75:
        return key, pick(rng, ("Write {} in words.", "Spell out {}.",
                               "How is {} written in words?")).format(n), in_words(n)
    return key, pick(rng, ("Write {} in digits.", "Which number is {}?",
                           "In digits, {} is what?")).format(in_words(n)), str(n)


def mul(rng):
    a, b = number(rng, 3), int(rng.random() * 10)
    key = None if a < 10 else f"mul {a} {b}"
    parts = [int(d) * b * 10 ** i for i, d in enumerate(reversed(str(a)))][::-1]
    answer = str(a * b) if a < 10 else " + ".join(map(str, parts)) + f" = {a * b}"
    x, y = (a, b) if rng.random() < 0.5 else (b, a)
    return key, pick(rng, ("What is {} * {}?", "Multiply {} by {}.", "What is {} times {}?",
                           "Find the product of {} and {}.")).format(x, y), answer


def compare(rng):
    a = number(rng, 4)
    # Half of the pairs differ in one digit only, so that every digit matters.
    b = number(rng, 4) if rng.random() < 0.5 else \
        abs(a + pick(rng, (-1, 1)) * 10 ** int(rng.random() * len(str(a))))
    if a == b:
        b += 1
    key = f"compare {min(a, b)} {max(a, b)}"
    kind = rng.random()
    if kind < 0.5:
        more = rng.random() < 0.5
        form = pick(rng, ("Which is {}, {} or {}?", "Name the {} of {} and {}.",
                          "Which number is {}: {} or {}?"))
        word = pick(rng, ("larger", "greater")) if more else "smaller"
        return key, form.format(word, a, b), str(max(a, b) if more else min(a, b))
    if kind < 0.8:
        word, yes = pick(rng, (("greater", a > b), ("larger", a > b), ("less", a < b),
                               ("smaller", a < b)))
        return key, f"Is {a} {word} than {b}?", "yes" if yes else "no"
    a, b = a % 100, b % 100
    if a == b:
        b = (a + 1) % 100
    more = rng.random() < 0.5
    return (f"compare {min(a, b)} {max(a, b)}",
            f"Which is {'larger' if more else 'smaller'}, {in_words(a)} or {in_words(b)}?",
            in_words(max(a, b) if more else min(a, b)))


def count(rng):
    kind = rng.random()
    if kind < 0.25:
        items = [pick(rng, NOUNS) for _ in range(1 + int(rng.random() * 12))]
        text = " ".join(items)
        return f"count {text}", pick(rng, (
            "How many words are in this list: {}?", "Count the words: {}.")).format(text), \
            str(len(items))
    if kind < 0.6:
        pool = rng.sample(NOUNS, 3)
        form = "How many times does {} appear here: {}?", "Count the word {} in this list: {}."
    else:
        pool = rng.sample("0123456789", 3)
        form = "How many times does the digit {} occur here: {}?", "Count the digit {} in: {}."
    target = pool[0]
    items = [pick(rng, pool) for _ in range(3 + int(rng.random() * 14))]
    while items.count(target) > 9:
        items.remove(target)
    text = " ".join(items)
    return f"count {target} {text}", pick(rng, form).format(target, text), str(items.count(target))


LIST_OPS = (
    (("Reverse this list: {}.", "Write in reverse order: {}.", "Say backwards: {}."),
     lambda x: x[::-1]),
    (("Repeat this list: {}.", "Copy: {}."), lambda x: x),
    (("What is the first item of: {}?", "Which comes first: {}?"), lambda x: x[:1]),
    (("What is the last item of: {}?", "Which comes last: {}?"), lambda x: x[-1:]),
    (("What is the second item of: {}?",), lambda x: x[1:2]),
    (("What is the third item of: {}?",), lambda x: x[2:3]),
    (("Leave out the first item of: {}.",), lambda x: x[1:]),
    (("Leave out the last item of: {}.",), lambda x: x[:-1]),
)


def some_items(rng, low, high):
    n = low + int(rng.random() * (high + 1 - low))
    if rng.random() < 0.6:
        return rng.sample(NOUNS, n)
    return [str(number(rng, 2)) for _ in range(n)]


def lists(rng):
    forms, op = LIST_OPS[0] if rng.random() < 0.3 else pick(rng, LIST_OPS)
    items = some_items(rng, 3, 8)
    text = " ".join(items)
    return f"list {text}", pick(rng, forms).format(text), " ".join(op(items))


def sort(rng):
    values = rng.sample(range(pick(rng, (10, 100, 100, 1000))), 3 + int(rng.random() * 4))
    down = rng.random() < 0.4
    text = ", ".join(map(str, values))
    way = pick(rng, ("descending order", "from largest to smallest")) if down else \
        pick(rng, ("ascending order", "from smallest to largest"))
    way = f"in {way}" if way.endswith("order") else way
    key = "sort " + " ".join(map(str, sorted(values)))
    return key, pick(rng, ("Sort {} {}.", "Put {} {}.")).format(text, way), \
        ", ".join(map(str, sorted(values, reverse=down)))


SHORT = {"arith": (arith, 3), "mul": (mul, 3), "words": (words, 3), "compare": (compare, 2),
         "count": (count, 2), "list": (lists, 1.5), "sort": (sort, 2)}
FAMILIES = list(SHORT) + ["lookup", "fewshot", "worksheet"]


def short_problem(rng, family=None, want_held=False):
    """A problem from the trained or (want_held) the held-out side of the split."""
    if family is None:
        family = rng.choices(list(SHORT), [w for _, w in SHORT.values()])[0]
    while True:
        key, prompt, answer = SHORT[family][0](rng)
        if want_held == (key is not None and held_out(key)):
            return family, prompt, answer


LOOKUPS = (
    ("The code of the {} is {}.", " ", "What is the code of the {}?", True),
    ("{}: {}", "\n", "What stands beside {}?", True),
    ("{} = {};", " ", "What is the value of {}?", True),
    ("The {} likes the {}.", " ", "Whom does the {} like?", False),
    ("{} -> {}", "\n", "Where does {} point?", False),
)


class Lookup:
    """Entries, followed by questions about them; an entry is asked for at most once."""

    def __init__(self, rng, entries):
        self.form, glue, self.question, digits = pick(rng, LOOKUPS)
        keys = rng.sample(range(len(COLOURS) * len(NOUNS)), entries)
        self.entries = []
        for k in keys:
            value = str(int(rng.random() * 1000)) if digits else pick(rng, NOUNS)
            self.entries.append((COLOURS[k % len(COLOURS)] + " " + NOUNS[k // len(COLOURS)], value))
        self.head = glue.join(self.form.format(*e) for e in self.entries) + "\n"
        self.left = self.entries[:]
        rng.shuffle(self.left)

    def problem(self, rng, want_held=False):
        for i, (name, value) in enumerate(self.left):
            if held_out(f"lookup {name} {value}") == want_held:
                del self.left[i]
                return self.question.format(name), value
        return None


WORD_RULES = (lambda x: x, lambda x: x[::-1], lambda x: x[:1], lambda x: x[-1:], lambda x: x[1:],
              lambda x: x[:-1], lambda x: x[1:] + x[:1], lambda x: x[-1:] + x[1:-1] + x[:1])
NUMBER_RULES = WORD_RULES[:4] + (
    lambda x: sorted(x), lambda x: sorted(x, reverse=True), lambda x: [max(x)], lambda x: [min(x)])


class Fewshot:
    """Examples of an unnamed rule.  An answer counts once the preceding examples determine it."""

    head = ""

    def __init__(self, rng):
        self.digits = rng.random() < 0.5
        self.rules = NUMBER_RULES if self.digits else WORD_RULES
        self.rule = pick(rng, self.rules)
        self.arrow = pick(rng, (" =>", " ->", ":"))
        self.fits = list(self.rules)

    def problem(self, rng, want_held=False):
        while True:
            n = 3 + int(rng.random() * 3)
            items = rng.sample(range(10, 100), n) if self.digits else rng.sample(NOUNS, n)
            text = " ".join(map(str, items))
            if held_out(f"fewshot {text}") == want_held:
                break
        answer = self.rule(items)
        self.clear = all(r(items) == answer for r in self.fits)
        self.fits = [r for r in self.fits if r(items) == answer]
        return text + self.arrow, " ".join(map(str, answer))


class Worksheet:
    head = ""

    def problem(self, rng, want_held=False):
        return short_problem(rng, want_held=want_held)[1:]


def long_source(rng, kind, room):
    """A source of problems for a document of about `room` tokens."""
    if kind == "lookup":
        most = max(3, (room - 40) // 10)
        return Lookup(rng, 3 + int(rng.random() * (most - 2)))
    return Fewshot(rng) if kind == "fewshot" else Worksheet()


def held_problem(rng, family):
    """(prompt, answer) of a held-out problem, in the newline form."""
    if family in SHORT:
        _, prompt, answer = short_problem(rng, family, True)
        return prompt + "\n", answer
    while True:
        room = pick(rng, (100, 150, 200, 300, 500, 960))
        source = long_source(rng, family, room)
        text = source.head
        solved = {"lookup": int(rng.random() * 3), "fewshot": max(4, room // 25),
                  "worksheet": max(2, room // 30)}[family]
        for _ in range(solved):
            problem = source.problem(rng)
            if problem:
                text += "{}\n{}\n".format(*problem)
        problem = source.problem(rng, True)
        if problem and (family != "fewshot" or source.clear):
            return text + problem[0] + "\n", problem[1]
