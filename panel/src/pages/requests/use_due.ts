import { useState } from "preact/hooks";
import { second } from "../../core/time";

/**
 * Whether to ask again what is asked every few seconds: at once about another subject, and never while an answer is out.
 *
 * To give up on an answer in order to ask for it anew would leave the page of a slow balancer empty for good.
 */
export function useDue(every_s: number, subject: string): { isDue: boolean; answered: () => void } {
  const [last, setLast] = useState<{ subject: string; at_s: number } | null>(null);
  const isDue = last?.subject !== subject || second.value >= last.at_s + every_s;
  return { isDue, answered: () => setLast({ subject, at_s: second.peek() }) };
}
