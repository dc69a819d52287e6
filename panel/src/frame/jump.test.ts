import assert from "node:assert/strict";
import { test } from "node:test";
import type { PageEntry } from "../pages/registry";
import type { Agent, Deployment } from "../types";
import { fitting, placesOf } from "./jump";

const page = (id: string, key: string): PageEntry => ({ id, key, title: id, icon: "fleet" }) as unknown as PageEntry;
const places = placesOf(
  [page("Fleet", "f"), page("Requests", "r")],
  new Map([["coder", {} as Deployment]]),
  new Map([
    ["1", { label: "a1" } as Agent],
    ["2", { label: "a1" } as Agent],
  ]),
);

test("pages, deployments and agents can be gone to, each once", () => {
  assert.deepEqual(
    places.map((each) => each.href),
    [
      "#/Fleet",
      "#/Requests",
      "#/model/new",
      "#/model/history",
      "#/model/edit/coder",
      "#/requests?deployment=coder",
      "#/requests?agent=a1",
    ],
  );
});

test("what begins with the words is first, and an id is a request", () => {
  const titles = (typed: string): string[] => fitting(places, typed).map((each) => each.title);
  assert.equal(titles("").length, places.length);
  assert.deepEqual(titles("req"), ["Requests", "Requests of coder", "Requests of a1", "Request req"]);
  assert.deepEqual(titles("coder chan"), ["Change coder"]);
  assert.deepEqual(titles("chatcmpl-7"), ["Request chatcmpl-7"]);
  assert.deepEqual(titles("a/b"), []);
  assert.equal(fitting(places, "x y#?")[0], undefined);
  assert.equal(fitting(places, "a#b")[0]?.href, "#/requests/a%23b");
});
