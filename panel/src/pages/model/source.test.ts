import assert from "node:assert/strict";
import { test } from "node:test";
import { parseSource, placeOf, shortName, sourceText } from "./source";

const FILE = { HuggingFace: { filename: "sub/m-Q4_K_M.gguf", repo_id: "org/repo", revision: "abc" } };

test("a source is read as the command line reads it", () => {
  assert.deepEqual(parseSource(" none "), { model: "None" });
  assert.deepEqual(parseSource("/models/m.gguf"), { model: { LocalToAgent: "/models/m.gguf" } });
  assert.deepEqual(parseSource("agent:/a%20b.gguf"), { model: { LocalToAgent: "/a b.gguf" } });
  assert.deepEqual(parseSource("agent:///m.gguf"), { model: { LocalToAgent: "/m.gguf" } });
  assert.deepEqual(parseSource("https://h/m.gguf#sha256=aa"), { model: { Url: { url: "https://h/m.gguf#sha256=aa" } } });
  assert.deepEqual(parseSource("hf:org/repo/sub/m-Q4_K_M.gguf@abc"), { model: FILE });
  assert.deepEqual(parseSource("https://huggingface.co/org/repo/blob/abc/sub/m-Q4_K_M.gguf"), { model: FILE });
  const store = `store://sha256/${"0f".repeat(32)}/my model.gguf`;
  assert.deepEqual(parseSource(store), { model: { Url: { url: store } } });
});

test("a repository is one with hf: and without it", () => {
  const plain = { repository: { repo_id: "org/repo-GGUF", quantisation: null, revision: "main" } };
  assert.deepEqual(parseSource("hf:org/repo-GGUF"), plain);
  assert.deepEqual(parseSource("org/repo-GGUF"), plain);
  assert.deepEqual(parseSource("hf:org/repo-GGUF:Q8_0@v1"), {
    repository: { repo_id: "org/repo-GGUF", quantisation: "Q8_0", revision: "v1" },
  });
});

test("what is no source is refused with what to write", () => {
  for (const [text, words] of [
    ["", /Name a source/],
    ["m.gguf", /no absolute path/],
    ["./models/m.gguf", /no absolute path/],
    ["ftp://h/m.gguf", /no way to get files/],
    ["hf:m.gguf", /hf:org\/repo/],
    ["hf:org/", /hf:org\/repo/],
    ["hf:org/repo:", /hf:org\/repo/],
    ["hf:org/repo@", /hf:org\/repo/],
    ["agent://models/m.gguf", /agent:\/models/],
    ["agent:m.gguf", /no absolute path/],
    ["store://sha256/12/m", /as a push prints it/],
    ["https://", /no URL/],
  ] as const) {
    assert.throws(() => parseSource(text), words);
  }
});

test("the text of a model is read back as that model", () => {
  for (const model of [FILE, "None", { LocalToAgent: "/m.gguf" }, { Url: { url: "https://h/x" } }] as const) {
    assert.deepEqual(parseSource(sourceText(model)), { model });
  }
});

test("a list shows the name of the file and where it lies", () => {
  assert.equal(shortName(FILE), "m-Q4_K_M.gguf");
  assert.equal(placeOf(FILE), "org/repo @ abc");
  assert.equal(shortName({ Url: { url: "https://h/a/m%20x.gguf?sig=1" } }), "m x.gguf");
  assert.equal(placeOf({ Url: { url: "https://h:1/a" } }), "h:1");
  assert.equal(shortName("None"), "no model");
});
