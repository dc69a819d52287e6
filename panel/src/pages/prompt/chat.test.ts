import assert from "node:assert/strict";
import { test } from "node:test";
import { draft, send, sides } from "./chat";
import { EMPTY, MAX_TURNS, added } from "./conversation";

test("a message that a full conversation has no room for stays in its box", () => {
  for (const count of [MAX_TURNS, MAX_TURNS - 1]) {
    let conversation = EMPTY;
    for (let turn = 0; turn < count; turn += 1) {
      conversation = added(conversation, null, { role: "user", text: "a", pictures: [] }).conversation;
    }
    sides[0].conversation.value = conversation;
    draft.value = "a long message";
    assert.throws(() => send(["default"]), /the limit is 2000: export it, and begin a new one/);
    assert.equal(draft.value, "a long message");
    assert.equal(sides[0].conversation.value, conversation);
  }
});
