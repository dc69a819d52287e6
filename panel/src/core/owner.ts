import { effect } from "@preact/signals";
import { session } from "./api";

/**
 * Have `forget` called when somebody else signs in than the last one who was here.
 *
 * What one person wrote is nothing for the next, and stays for whose session has only expired.
 */
export function whenAnotherSignsIn(forget: () => void): void {
  let owner: string | null = null;
  effect(() => {
    const found = session.value;
    if (found?.signed_in !== true || found.name === null) {
      return;
    }
    const isAnother = owner !== null && owner !== found.name;
    owner = found.name;
    if (isAnother) {
      forget();
    }
  });
}
