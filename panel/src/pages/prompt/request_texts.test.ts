import assert from "node:assert/strict";
import { test } from "node:test";
import { adviceFor, endingOf } from "./advice";
import { failure, newAnswer } from "./answer";
import { asCurl, asPython, inferenceAddress, pythonOf } from "./copy_as";
import { MAX_PICTURES, pictureProblem } from "./pictures";
import { EXAMPLE_TOOL, readJson, readSchema, toolProblems, toolsOf } from "./schemas";

const target = { address: "http://127.0.0.1:8061", path: "/v1/chat/completions", needsKey: false } as const;

test("curl gets the body as a here-document, and the key from the environment", () => {
  const text = asCurl({ model: "default", messages: [{ role: "user", content: "It's \"$HOME\"" }] }, target);
  assert.match(text, /^curl --no-buffer http:\/\/127\.0\.0\.1:8061\/v1\/chat\/completions/);
  assert.match(text, /<<'JSON'\n\{/);
  assert.ok(text.includes('It\'s \\"$HOME\\"'));
  assert.ok(!text.includes("Authorization"));
  assert.match(asCurl({}, { ...target, needsKey: true }), /Bearer \$PADDLER_API_KEY"/);
});

test("Python gets OpenAI's fields by name, others in extra_body", () => {
  const text = asPython({ model: "d", messages: [], temperature: 0.5, min_p: 0.1, enable_thinking: true }, target);
  assert.match(text, /base_url="http:\/\/127\.0\.0\.1:8061\/v1", api_key="none"/);
  assert.match(text, /temperature=0\.5,/);
  assert.match(text, /extra_body=\{\n {8}"min_p": 0\.1,\n {8}"enable_thinking": True,\n {4}\}/);
  const raw = asPython({ prompt: [1, 2], response_format: { type: "json_object" } }, { ...target, path: "/v1/completions" });
  assert.match(raw, /client\.completions\.create/);
  assert.match(raw, /prompt=\[1, 2\],/);
  assert.match(raw, /extra_body=\{\n {8}"response_format"/);
});

test("JSON values are Python literals", () => {
  assert.equal(pythonOf({ a: [null, true, false], b: "x\n\"" }, 0), '{\n    "a": [\n        None,\n        True,\n        False,\n    ],\n    "b": "x\\n\\"",\n}');
});

test("an address that is every interface is reached at the page's host", () => {
  assert.equal(inferenceAddress(["0.0.0.0:8061"], "gpu7.example", false), "http://gpu7.example:8061");
  assert.equal(inferenceAddress(["[::]:8061"], "gpu7.example", false), "http://gpu7.example:8061");
  assert.equal(inferenceAddress(["10.0.0.5:8061"], "gpu7.example", false), "http://10.0.0.5:8061");
  assert.equal(inferenceAddress([], "x", false), null);
});

test("an address of a balancer with TLS says so", () => {
  assert.equal(inferenceAddress(["0.0.0.0:8061"], "gpu7.example", true), "https://gpu7.example:8061");
});

test("JSON that is wrong is shown with line and column", () => {
  const place = (text: string) => readJson(text).problem;
  assert.equal(place('{"a": 1}'), null);
  assert.equal(place('{\n  "a": oops\n}'), "line 2, column 8: unexpected “o”");
  assert.equal(place('{"a": 1,}'), "line 1, column 9: unexpected “}”");
  assert.equal(place('{"a": 1'), "line 1, column 8: the text ends too early");
  assert.equal(place('{"a": 1} x'), "line 1, column 10: unexpected “x”");
  assert.equal(place("[1 2]"), "line 1, column 4: unexpected “2”");
  assert.equal(place('{"a": "b\nc"}'), "line 1, column 9: unexpected line break");
});

test("schemas are checked down to the member at fault", () => {
  assert.equal(readSchema(EXAMPLE_TOOL.schema).problem, null);
  assert.equal(readSchema("[]").schema, null);
  const fault = (value: unknown) => readSchema(JSON.stringify(value)).problem;
  assert.match(fault({ type: "text" }) ?? "", /^\$\.type is "text", must be one of/);
  assert.match(fault({ properties: { a: { type: "array", items: { enum: [] } } } }) ?? "", /\$\.properties\.a\.items\.enum/);
  assert.match(fault({ required: "a" }) ?? "", /\$\.required must be a list of names/);
  assert.match(fault({ anyOf: [{ type: "string" }, 5] }) ?? "", /\$\.anyOf\[1\] is a number/);
  assert.match(readSchema(`"${"x".repeat(300_000)}"`).problem ?? "", /limit max_schema_bytes is 262144/);
});

test("tools have names of their own and schemas that can be read", () => {
  const tools = [EXAMPLE_TOOL, { ...EXAMPLE_TOOL }, { name: "", description: "", schema: "" }, { name: "x", description: "", schema: "{" }];
  const problems = toolProblems(tools);
  assert.deepEqual([...problems.keys()], [1, 2, 3]);
  assert.match(problems.get(1) ?? "", /given twice/);
  assert.equal(toolsOf(tools).length, 1);
});

test("pictures have types, sizes and a number", () => {
  const file = { name: "a.png", type: "image/png", size: 10 };
  assert.equal(pictureProblem(file, 0), null);
  assert.match(pictureProblem({ ...file, type: "image/svg+xml" }, 0) ?? "", /a\.png is image\/svg\+xml/);
  assert.match(pictureProblem({ ...file, size: 9 * 1024 * 1024 }, 0) ?? "", /9\.0 MiB, the limit is 8 MiB/);
  assert.match(pictureProblem(file, MAX_PICTURES) ?? "", /limit is 8/);
});

test("every failure comes with advice, and every ending has words", () => {
  for (const status of [0, 400, 401, 403, 404, 413, 422, 429, 500, 501, 502, 503, 504]) {
    assert.ok(adviceFor(failure(status, "x")).length > 20);
  }
  assert.match(adviceFor({ status: 503, text: "", field: null, retryAfterS: 7 }), /in 7 s/);
  const long = "the prompt has 9 tokens, which exceeds the available context size of 8 tokens";
  assert.match(adviceFor({ status: 400, text: long, field: "messages", retryAfterS: null }), /raise context_size/);
  const answer = { ...newAnswer("r", "d", 0), phase: "done" as const };
  assert.equal(endingOf({ ...answer, finishReason: "length" }).text, "cut at max tokens");
  assert.equal(endingOf({ ...answer, phase: "stopped" }).text, "stopped by you");
});
