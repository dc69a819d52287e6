"""Hostile requests for an answer: sampling, constraints, prompts, JSON that is all structure."""

from __future__ import annotations

import random

from attack_call import Call, dumps, request
from attack_value import (
    ABANDON_S,
    CONSTRAINED,
    SAMPLED,
    SURFACES,
    Attack,
    Body,
    as_text,
    ask,
    attack,
    attack_of,
    prose,
    whole,
)

MAX_INT32 = 2**31 - 1
_NUMBERS = (
    "top_k",
    "min_keep",
    "n_probs",
    "seed",
    "mirostat",
    "dry_allowed_length",
    "dry_base",
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "dynatemp_range",
    "xtc_threshold",
    "mirostat_tau",
    "mirostat_eta",
    "max_tokens",
)

# ------------------------------------------------------------------------------- sampling


def penalties(dice: random.Random, scale: float) -> Attack:
    """A window of penalties that is longer than any context."""
    path = dice.choice(SAMPLED)
    window = dice.choice([MAX_INT32, MAX_INT32 // 2, 2**24, 10**9])
    strength = dice.choice([1.1, 1.5, 2.0])
    kind = dice.choice(["repeat", "dry", "frequency"])
    if path == "/api/v2/generate":
        fields: Body = {
            "repeat": {"penalty_last_n": window, "penalty_repeat": strength},
            "dry": {"dry_penalty_last_n": window, "dry_multiplier": strength},
            "frequency": {"penalty_last_n": window, "penalty_frequency": 0.5},
        }[kind]
        return attack(f"{kind} over {window} tokens", path, ask(path, sampling=fields))
    fields = {
        "repeat": {"repeat_last_n": window, "repeat_penalty": strength},
        "dry": {"dry_penalty_last_n": window, "dry_multiplier": strength},
        "frequency": {"repeat_last_n": window, "frequency_penalty": 0.5},
    }[kind]
    return attack(f"{kind} over {window} tokens", path, ask(path, **fields))


def extreme_numbers(dice: random.Random, scale: float) -> Attack:
    """Every number of a sampler at the end of its range, or beyond."""
    path = dice.choice(("/completion", "/v1/chat/completions", "/v1/completions"))
    values = [MAX_INT32, -MAX_INT32, 10**30, 1e308, -1e308, 1e-320, 0, -1, 2**63]
    fields = {name: dice.choice(values) for name in dice.sample(_NUMBERS, 4)}
    return attack(f"extreme {', '.join(fields)}", path, ask(path, **fields))


def biases(dice: random.Random, scale: float) -> Attack:
    """Tens of thousands of logit biases, by token or by text."""
    path = dice.choice(("/completion", "/api/v2/generate"))
    number = whole(dice, 1000, 60_000, scale)
    by_text = dice.random() < 0.6
    if path == "/api/v2/generate":
        entries: object = [
            {"text": f"word {n}", "bias": -1.0} if by_text else {"token": n % 4000, "bias": 0.1}
            for n in range(number)
        ]
        body = ask(path, sampling={"logit_bias": entries})
    else:
        entries = [[f"word {n}" if by_text else n % 4000, 0.1] for n in range(number)]
        body = ask(path, logit_bias=entries)
    kind = "texts" if by_text else "tokens"
    return attack(f"{number} biased {kind}", path, body, leaves=dice.random() < 0.5)


def stops(dice: random.Random, scale: float) -> Attack:
    """Very many stop texts, or sequence breakers, or sampler names."""
    path = dice.choice(CONSTRAINED)
    number = whole(dice, 100, 100_000, scale)
    texts = [f"{'ab' * dice.randint(1, 20)}{n}" for n in range(number)]
    field = dice.choice(["stop", "dry_sequence_breakers", "samplers"])
    if path == "/api/v2/generate" and field != "stop":
        body = ask(path, sampling={field: texts, "dry_multiplier": 1.0})
    else:
        body = ask(path, **{field: texts, "dry_multiplier": 1.0})
    return attack(f"{number} entries of {field}", path, body)


def schema_of_fields(number: int) -> Body:
    """A schema with so many required texts, as a response format."""
    fields = {f"p{k}": {"type": "string", "maxLength": 200} for k in range(4 * number)}
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def products(dice: random.Random, scale: float) -> Attack:
    """Two numbers of a request, or three, each of which is allowed: what counts is their product.

    Who asks for thousands of tokens is answered with them, so half of these clients leave.
    """
    n, tokens = whole(dice, 2, 32, scale), whole(dice, 8, 4000, scale)
    prompts = [f"prompt {number}" for number in range(whole(dice, 2, 2048 // n, scale))]
    long = prose(whole(dice, 1000, 1_000_000, scale))
    chat, legacy, llama = "/v1/chat/completions", "/v1/completions", "/completion"
    known: Body = {"n_predict": tokens, "n_probs": 100}
    path, pair, fields = dice.choice(
        [
            (llama, "n x tokens x n_probs", {"n": n, **known}),
            (llama, "prompts x n x n_probs", {"prompt": prompts, "n": n, **known, "n_predict": 8}),
            (llama, "prompts x n x tokens", {"prompt": prompts, "n": n, "n_predict": tokens}),
            (llama, "n x n_probs without end", {"n": n, "n_probs": 100, "n_predict": -1}),
            (llama, "prompt x n", {"prompt": long, "n": n, "n_predict": 1}),
            (legacy, "best_of x tokens", {"best_of": n, "n": 1, "max_tokens": tokens}),
            (legacy, "echo x n", {"prompt": long, "echo": True, "n": n, "max_tokens": 1}),
            (legacy, "suffix x prompts", {"prompt": prompts, "suffix": long[:9000]}),
            (
                chat,
                "n x top_logprobs",
                {"n": n, "logprobs": True, "top_logprobs": 20, "max_tokens": tokens},
            ),
            (chat, "n x stop", {"n": n, "stop": [f"{k}".zfill(1024) for k in range(32)]}),
            (chat, "n x biases", {"n": n, "logit_bias": {str(k): 1 for k in range(300)}}),
            (chat, "n x schema", {"n": n, "response_format": schema_of_fields(n), "max_tokens": 4}),
            (chat, "tokens x model", {"model": "m" * 512, "max_tokens": tokens, "stream": True}),
            (
                "/v1/responses",
                "tokens x top_logprobs",
                {"max_output_tokens": tokens, "top_logprobs": 20, "stream": n % 2 == 0},
            ),
        ]
    )
    is_stream = {"stream": True} if dice.random() < 0.2 and path in (llama, chat) else {}
    return attack(pair, path, ask(path, **fields, **is_stream), leaves=dice.random() < 0.5)


# ---------------------------------------------------------------------------- constraints


def schema_of(dice: random.Random, scale: float) -> tuple[str, object]:
    """A schema that is small to write and large to think about."""
    size = whole(dice, 4, 40, scale)

    def product() -> object:
        branches, factors = min(max(size // 2, 2), 14), min(max(size // 3, 2), 10)
        return {
            "allOf": [
                {"anyOf": [{"properties": {f"p{a}_{b}": {"const": b}}} for b in range(branches)]}
                for a in range(factors)
            ]
        }

    def cycle() -> object:
        names = [f"d{n}" for n in range(size)]
        following = zip(names, names[1:] + names[:1], strict=True)
        return {
            "$defs": {
                name: {"allOf": [{"$ref": f"#/$defs/{other}"}, {"$ref": f"#/$defs/{name}"}]}
                for name, other in following
            },
            "$ref": "#/$defs/d0",
        }

    def doubling() -> object:
        each: Body = {"d0": {"type": "integer"}}
        for n in range(1, min(size, 30)):
            both = {"$ref": f"#/$defs/d{n - 1}"}
            each[f"d{n}"] = {"allOf": [{"properties": {"a": both, "b": both}}, {"type": "object"}]}
        return {"$defs": each, "$ref": f"#/$defs/d{len(each) - 1}"}

    def counted() -> object:
        count = dice.choice([10**5, 10**9, MAX_INT32])
        return {"type": "array", "minItems": count, "items": {"type": "string", "minLength": count}}

    def pattern() -> object:
        return {"type": "string", "pattern": regex_of(dice, scale)[1]}

    def choices() -> object:
        return {"enum": [f"choice {n} {'x' * dice.randint(1, 9)}" for n in range(250 * size)]}

    def properties() -> object:
        return {
            "type": "object",
            "properties": {
                f"p{n}": {"oneOf": [{"type": "integer"}, {"type": "string"}]}
                for n in range(20 * size)
            },
            "additionalProperties": {"$ref": "#"},
        }

    def nested() -> object:
        inner: object = {"type": "integer"}
        for _ in range(min(size, 18)):
            inner = {"anyOf": [{"type": "array", "items": inner}, {"not": inner}]}
        return inner

    def tuples() -> object:
        return {"prefixItems": [{"anyOf": [{"$ref": "#"}, {"type": "null"}]}] * (50 * size)}

    def lists() -> object:
        own = {"type": "array", "items": {"$ref": "#"}}
        several = [own | {"minItems": n, "maxItems": n} for n in range(1, min(size, 9))]
        return {"anyOf": [*several, {"type": "integer"}]}

    makers = (
        product,
        cycle,
        doubling,
        counted,
        pattern,
        choices,
        properties,
        nested,
        tuples,
        lists,
    )
    maker = dice.choice(makers)
    return f"schema: {maker.__name__} {size}", maker()


def regex_of(dice: random.Random, scale: float) -> tuple[str, str]:
    size = whole(dice, 4, 40, scale)
    count = dice.choice([255, 1000, 10**6])
    return dice.choice(
        [
            ("regex: nested counts", f"((a{{1,{count}}}b){{1,{count}}}c){{1,{count}}}"),
            ("regex: optional", "(a?)" * (25 * size) + "a" * 20),
            ("regex: nested stars", "(" * size + "a*" + ")*" * size),
            ("regex: alternatives", "|".join(f"w{n}" for n in range(100 * size))),
            ("regex: classes", "[\\u0001-\\uffff]" * (20 * size)),
            ("regex: look-ahead", "(?=a.*b)" * size + ".*"),
            ("regex: groups", "(" * (200 * size) + ")" * (200 * size)),
        ]
    )


def gbnf_of(dice: random.Random, scale: float) -> tuple[str, str]:
    size = whole(dice, 4, 40, scale)
    count = dice.choice([1000, 100_000, 10**9])
    words = " | ".join(f'"alternative {n}"' for n in range(250 * size))
    ladder = "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(size))
    ends = "\n".join(f'r{n} ::= r{n + 1} "a" | r{n + 1} "b"' for n in range(size))
    return dice.choice(
        [
            ("gbnf: alternatives", f"root ::= {words}"),
            ("gbnf: nested", "root ::= " + "(" * 100 * size + '"a"' + ")" * 100 * size),
            ("gbnf: stars", "root ::= " + "(" * size + '"a"*' + ")*" * size),
            ("gbnf: count", f'root ::= ("a" ("b" | "c"){{1,{count}}}){{1,{count}}}'),
            ("gbnf: left recursion", "root ::= a\na ::= b\nb ::= a | root"),
            ("gbnf: empty loops", 'root ::= e* root | "a"\ne ::= ""*'),
            ("gbnf: doubling", f'root ::= r0\n{ladder}\nr{size} ::= "a" | ""'),
            ("gbnf: rules", "\n".join(f'{n} ::= "x"' for n in ["root", *map(_rule, range(4000))])),
            ("gbnf: readings", 'root ::= "Q" root "b" | "Q" root "c" | "Q"'),
            ("gbnf: beginnings", f'root ::= r0\n{ends}\nr{size} ::= "a"'),
            ("gbnf: tokens", f'root ::= "a" <[{dice.randrange(1000)}]>'),
            ("gbnf: options", "root ::= " + "([a-z]* [^b]?) " * 20 * size),
            ("gbnf: not one", "root ::= " + "\x00\\u{110000}[" * size),
        ]
    )


def _rule(number: int) -> str:
    return "r" + "".join(chr(97 + int(digit)) for digit in str(number))


def constraints(dice: random.Random, scale: float) -> Attack:
    """A schema, a pattern, a grammar or a list that costs more than it looks; often abandoned."""
    leaves = dice.random() < 0.5
    kind = dice.choice(["schema", "schema", "regex", "gbnf", "choice"])
    path = dice.choice(CONSTRAINED)
    native = path == "/api/v2/generate"
    if kind == "schema":
        name, schema = schema_of(dice, scale)
        if native:
            body = ask(path, constraint={"type": "json_schema", "schema": as_text(schema)})
        else:
            body = ask(path, json_schema=schema)
    elif kind == "gbnf":
        name, grammar = gbnf_of(dice, scale)
        gbnf = {"type": "gbnf", "grammar": grammar, "root": "root"}
        body = ask(path, constraint=gbnf) if native else ask(path, grammar=grammar)
    elif kind == "regex":
        name, pattern = regex_of(dice, scale)
        regex = {"type": "regex", "pattern": pattern}
        body = ask(path, constraint=regex) if native else ask(path, guided_regex=pattern)
    else:
        number = whole(dice, 100, 10_000, scale)
        name, listed = f"{number} choices", [f"choice number {n}" for n in range(number)]
        choice = {"type": "choice", "choices": listed}
        body = ask(path, constraint=choice) if native else ask(path, guided_choice=listed)
    return attack(name, path, body, leaves=leaves)


def tools(dice: random.Random, scale: float) -> Attack:
    """Tools whose parameters are hostile schemas."""
    path = "/v1/chat/completions"
    number = whole(dice, 1, 200, scale)
    name, schema = schema_of(dice, 0.5 * scale)
    functions = [
        {
            "type": "function",
            "function": {
                "name": f"f{n}",
                "description": "d",
                "parameters": {"type": "object", "properties": {"a": schema}},
            },
        }
        for n in range(number)
    ]
    body = ask(path, tools=functions, tool_choice=dice.choice(["auto", "required"]))
    return attack(f"{number} tools, {name}", path, body, leaves=dice.random() < 0.5)


# --------------------------------------------------------------------------------- prompts


def preparation(dice: random.Random, scale: float) -> Attack:
    """Prompts that are long to prepare, as many at once as there are places for it; all abandoned
    but the one of them that would end first."""
    kind = dice.choice(["messages", "text", "alternatives", "biases", "history", "documents"])
    copies = dice.choice([1, 4])
    if kind == "messages":
        path, number = (
            "/api/v1/continue_from_conversation_history",
            whole(dice, 4000, 60_000, scale),
        )
        body = ask(path)
        body["conversation_history"] = [{"role": "user", "content": "hi"}] * number
    elif kind == "text":
        path = dice.choice(list(SURFACES))
        number = whole(dice, 200_000, 1_900_000 if "/v1/continue" in path else 8_000_000, scale)
        body = ask(path, prose(number))
    elif kind == "alternatives":
        path, number = "/completion", whole(dice, 1000, 10_000, scale)
        words = " | ".join(f'"alternative {n}"' for n in range(number))
        body = ask(path, grammar=f"root ::= {words}")
    elif kind == "biases":
        path, number = "/api/v2/generate", whole(dice, 1000, 60_000, scale)
        texts = [{"text": f"word {n}", "bias": -1.0} for n in range(number)]
        body = ask(path, sampling={"logit_bias": texts})
    elif kind == "history":
        path, number = "/v1/chat/completions", whole(dice, 400, 4000, scale)
        turns = [
            {"role": ("user", "assistant")[n % 2], "content": prose(400)} for n in range(number)
        ]
        body = ask(path, messages=[*turns, {"role": "user", "content": "and?"}])
    else:
        path, number = "/v1/chat/completions", whole(dice, 100, 1000, scale)
        body = ask(path, documents=[{"title": "a", "text": prose(2000)}] * number)

    def calls() -> list[Call]:
        text = request(path, dumps(body))
        return [Call(steps=[text], leave_after_s=ABANDON_S) for _ in range(copies)]

    return attack_of(f"{path} {copies} x {number} {kind}, left", calls, path)


def templates(dice: random.Random, scale: float) -> Attack:
    """Variables and messages that make a template work hard."""
    path = dice.choice(["/v1/chat/completions", "/apply-template"])
    number = whole(dice, 100, 20_000, scale)
    kind = dice.choice(["deep", "long", "keys", "parts", "roles"])
    if kind == "deep":
        inner: object = []
        for _ in range(min(number, 60)):
            inner = [inner, inner] if dice.random() < 0.15 else [inner]
        body = ask(path, chat_template_kwargs={"tools": inner, "xml_tools": inner})
    elif kind == "long":
        body = ask(path, chat_template_kwargs={"messages": ["{{ messages }}"] * number})
    elif kind == "keys":
        body = ask(path, chat_template_kwargs={f"variable_{n}": n for n in range(number)})
    elif kind == "parts":
        parts = [{"type": "text", "text": "<|im_start|>"}] * number
        body = ask(path, messages=[{"role": "user", "content": parts}])
    else:
        roles = ["system", "tool", "user", "assistant"]
        turns = [{"role": dice.choice(roles), "content": "x"} for _ in range(min(number, 4000))]
        body = ask(path, messages=turns)
    return attack(f"template {kind} {number}", path, body)


def tokens(dice: random.Random, scale: float) -> Attack:
    """Floods of token ids: to be named, to be continued, to be joined; often abandoned."""
    number = whole(dice, 10_000, 1_000_000, scale)
    ids = [dice.randrange(4000)] * number
    kind = dice.choice(["pieces", "detokenize", "prompt", "v2 prompt", "prompts"])
    if kind == "pieces":
        path, body = "/tokenize", {"content": prose(2 * number), "with_pieces": True}
    elif kind == "detokenize":
        path, body = dice.choice(["/detokenize", "/api/v2/detokenize"]), {"tokens": ids}
    elif kind == "prompt":
        path, body = "/completion", {"prompt": ids, "n_predict": 8}
    elif kind == "v2 prompt":
        path, body = "/api/v2/generate", {"prompt": {"Tokens": {"tokens": ids}}, "max_tokens": 8}
    else:
        path, body = "/v1/completions", {"prompt": [["a b"]] * min(number, 50_000), "max_tokens": 1}
    call = Call(steps=[request(path, body)], leave_after_s=dice.choice([None, ABANDON_S]))
    left = ", left" if call.leave_after_s is not None else ""
    return attack_of(f"{path} {kind}, {number} tokens{left}", lambda: [call], path)


# ------------------------------------------------------------------------------ JSON itself


def structure_of(dice: random.Random, size_bytes: int) -> tuple[str, bytes]:
    """JSON of about this size that is all structure, as text: it would take long to make."""

    def filled(unit: bytes) -> bytes:
        return b"[" + unit * (size_bytes // len(unit)) + unit.rstrip(b",") + b"]"

    return dice.choice(
        [
            ("ids", filled(b"1,")),
            ("objects", filled(b"{},")),
            ("arrays", filled(b"[],")),
            ("strings", filled(b'"",')),
            ("depth", b"[" * (size_bytes // 2) + b"]" * (size_bytes // 2)),
            ("short depth", filled(b"[" * 60 + b"]" * 60 + b",")),
            ("one number", b"1" * size_bytes),
            ("decimals", filled(b"1e999,")),
            ("long floats", filled(b"0." + b"1234567890" * 20 + b",")),
            ("growing floats", filled(b"1e15,")),
            ("escapes", b'"' + b"\\u0000" * (size_bytes // 6) + b'"'),
            ("keys", b"{" + b",".join(b'"%d":0' % n for n in range(size_bytes // 10)) + b"}"),
            ("equal keys", b"{" + b'"a":0,' * (size_bytes // 6) + b'"a":0}'),
        ]
    )


_PLACES = {
    "/completion": (b'{"prompt":', b',"n_predict":8}'),
    "/v1/chat/completions": (b'{"messages":', b"}"),
    "/v1/completions": (b'{"max_tokens":8,"prompt":', b"}"),
    "/v1/responses": (b'{"input":', b"}"),
    "/v1/messages": (b'{"max_tokens":8,"model":"m","messages":', b"}"),
    "/v1/embeddings": (b'{"model":"m","input":', b"}"),
    "/v1/rerank": (b'{"query":"q","documents":', b"}"),
    "/tokenize": (b'{"content":', b"}"),
    "/detokenize": (b'{"tokens":', b"}"),
    "/api/v2/generate": (b'{"prompt":{"Tokens":{"tokens":', b"}}}"),
    "/api/v2/detokenize": (b'{"tokens":', b"}"),
    "/api/v1/continue_from_raw_prompt": (b'{"max_tokens":8,"raw_prompt":', b"}"),
    "/api/v1/generate_embedding_batch": (b'{"normalization_method":"L2","input_batch":', b"}"),
}


def inflated(dice: random.Random, scale: float) -> Attack:
    """A small gzip body that is megabytes of JSON, in a field or in one that nobody knows."""
    path = dice.choice(list(_PLACES))
    most = 2_000_000 if path.startswith("/api/v1/") else 32_000_000
    size_bytes = whole(dice, 500_000, most, scale)
    name, value = structure_of(dice, size_bytes)
    before, after = _PLACES[path]
    if dice.random() < 0.3:
        name, before = f"unknown field of {name}", before.replace(b'"', b'"x_', 1)
    body = before + value + after
    return attack(f"{name}, {len(body) >> 10} KiB of JSON", path, body, is_packed=True)


def bombs(dice: random.Random, scale: float) -> Attack:
    """Bodies that inflate without end, twice, wrongly, or not at all."""
    path = dice.choice(list(SURFACES))
    zeros = bytes(whole(dice, 1_000_000, 200_000_000, scale))
    packed = request(path, zeros, is_packed=True)
    kind = dice.choice(["zeros", "twice", "truncated", "appended"])
    raw = packed.partition(b"\r\n\r\n")[2]
    if kind == "twice":
        call = Call(steps=[request(path, raw, is_packed=True)])
    elif kind == "zeros":
        call = Call(steps=[packed])
    else:
        damaged = raw[:-20] if kind == "truncated" else raw + b"tail"
        encoding = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        call = Call(steps=[request(path, damaged, headers=encoding)])
    return attack_of(f"{path} gzip {kind}, {len(zeros) >> 20} MiB", lambda: [call], path)


def growing(dice: random.Random, scale: float) -> Attack:
    """What is longer when it is written again: for an agent's link it must be measured."""
    kind = dice.choice(["floats", "escapes", "tokens", "fields"])
    number = whole(dice, 100_000, 5_000_000, scale)
    if kind == "floats":
        path = "/v1/chat/completions"
        numbers = b"[" + b"1e15," * number + b"1]"
        body = ask(path)
        head, _, tail = dumps(body | {"documents": [{"a": "@"}]}).partition(b'"@"')
        raw = head + numbers + tail
    elif kind == "escapes":
        path = "/api/v2/generate"
        raw = dumps(ask(path, "\x01" * number))
    elif kind == "tokens":
        path = "/api/v2/generate"
        ids = b"[" + b"1," * number + b"1]"
        raw = b'{"max_tokens":8,"prompt":{"Tokens":{"tokens":' + ids + b"}}}"
    else:
        path = "/api/v1/continue_from_conversation_history"
        body = ask(path)
        body["conversation_history"] = [{"role": "", "content": "\x02" * 5}] * min(number, 30_000)
        raw = dumps(body)
    return attack(f"growing {kind} x {number}", path, raw, is_packed=True)
