import assert from "node:assert/strict";
import { test } from "node:test";
import { MAX_BLOCK_CHARS, MAX_MARKDOWN_CHARS, NO_TEXT, grown } from "./markdown_blocks";

const TEXT = `# Title

A paragraph with a [link][1],
of two lines.

- one
- two

  still two

> quoted

\`\`\`py
a = 1

b = 2
\`\`\`

| a | b |
|---|---|
| 1 | 2 |

[1]: https://example.org

End.
`;

const raws = (text: string) => grown(NO_TEXT, text).blocks.map((block) => block.raw.trim());

test("a text that grows has the blocks of the whole, whatever pieces it came in", () => {
  const whole = raws(TEXT);
  assert.equal(whole.length, 7);
  for (const size of [1, 2, 3, 7, 11, 40]) {
    let text = NO_TEXT;
    for (let end = size; end < TEXT.length + size; end += size) {
      text = grown(text, TEXT.slice(0, end));
    }
    assert.deepEqual(
      text.blocks.map((block) => block.raw.trim()),
      whole,
    );
    assert.match(text.definitions, /\[1\]: https:\/\/example\.org/);
  }
});

test("a block stays the same object while the text grows after it", () => {
  const before = grown(NO_TEXT, "# One\n\ntwo\n\nthree\n\n");
  const after = grown(before, "# One\n\ntwo\n\nthree\n\nfour");
  assert.ok(after.blocks[0] === before.blocks[0]);
  assert.equal(after.blocks.length, 4);
});

test("another text begins anew", () => {
  assert.deepEqual(
    grown(grown(NO_TEXT, "one\n\ntwo\n\nthree"), "zero").blocks.map((block) => block.raw),
    ["zero"],
  );
});

test("what is long or nested without end is plain", () => {
  for (const part of ["_a_", "> ", "   1. ", "[", "*a ", "<a ", "![", "`a", "| "]) {
    const text = part.repeat(50_000 / part.length);
    const { blocks } = grown(NO_TEXT, text);
    assert.ok(blocks.every((block) => block.isPlain || block.raw.length <= MAX_BLOCK_CHARS));
    assert.equal(blocks.map((block) => block.raw).join("").trim(), text.trim());
  }
});

test("long code is code, a long text is plain", () => {
  const code = grown(NO_TEXT, `\`\`\`\n${"x\n".repeat(MAX_BLOCK_CHARS)}\`\`\``);
  assert.deepEqual(
    code.blocks.map((block) => block.isPlain),
    [false],
  );
  const long = grown(NO_TEXT, "a\n\n".repeat(MAX_MARKDOWN_CHARS / 3 + 1));
  assert.deepEqual(
    long.blocks.map((block) => block.isPlain),
    [true],
  );
});
