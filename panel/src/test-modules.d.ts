/** The few functions of node that unit tests use; the panel itself runs in browsers only. */
declare module "node:test" {
  export function test(name: string, body: () => void | Promise<void>): void;
}

declare module "node:assert/strict" {
  interface Assert {
    equal(actual: unknown, expected: unknown, message?: string): void;
    deepEqual(actual: unknown, expected: unknown, message?: string): void;
    ok(value: unknown, message?: string): asserts value;
    throws(body: () => unknown, expected?: RegExp): void;
    rejects(body: () => Promise<unknown>, expected?: RegExp): Promise<void>;
    match(text: string, pattern: RegExp): void;
  }
  const assert: Assert;
  export default assert;
}
