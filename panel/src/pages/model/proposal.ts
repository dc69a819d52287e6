/** A change that is to be reviewed: it can be made to any state, so it can be put on top of another operator's. */

import { fieldAt } from "./fields";
import { type Draft, draft, draftSpec, withSpec } from "./fleet_state";
import type { State, StoredRevision } from "./spec";
import { rebased, specOf, valuesOf } from "./values";

export interface Proposal {
  title: string;
  /** It is what stands in the form. */
  isDraft: boolean;
  /** The revision that it was made for. */
  from: StoredRevision;
  /** The whole state with the change. */
  appliedTo: (state: State) => State;
  /** What it changes of what somebody else has changed since, in words. */
  collisions: (state: State) => string[];
  /** The same change, for the state of another revision. */
  moved: (to: StoredRevision) => Proposal;
}

/** The draft in the form; moving it moves the form, too. */
export function proposalOf(open: Draft): Proposal {
  const merged = (state: State): { spec: ReturnType<typeof draftSpec>; collisions: string[] } => {
    const now = state.deployments.find((each) => each.name === open.name);
    if (now === undefined) {
      const isGone = !open.isNew;
      return { spec: draftSpec(open), collisions: isGone ? [`${open.name} was removed; yours adds it again.`] : [] };
    }
    if (open.isNew) {
      return { spec: draftSpec(open), collisions: [`${open.name} was added; yours replaces it.`] };
    }
    const { values, collisions } = rebased(open.values, open.base, now);
    return {
      spec: specOf(values, now),
      collisions: collisions.map((path) => `Both changed “${fieldAt(path)?.label ?? path}”; yours wins.`),
    };
  };
  return {
    isDraft: true,
    title: open.isNew ? `Add ${open.name}` : `Change ${open.name}`,
    from: open.from,
    appliedTo: (state) => withSpec(state, merged(state).spec),
    collisions: (state) => merged(state).collisions,
    moved: (to) => {
      const now = to.state.deployments.find((each) => each.name === open.name);
      const values = now && !open.isNew ? rebased(open.values, open.base, now).values : open.values;
      const next: Draft = now
        ? { ...open, isNew: false, base: now, from: to, values, refused: {} }
        : { ...open, isNew: true, from: to, refused: {} };
      draft.value = next;
      return proposalOf(next);
    },
  };
}

/** To desire a deployment no more. */
export function removalOf(name: string, from: StoredRevision): Proposal {
  const spec = from.state.deployments.find((each) => each.name === name);
  return {
    isDraft: false,
    title: `Remove ${name}`,
    from,
    appliedTo: (state) => ({ deployments: state.deployments.filter((each) => each.name !== name) }),
    collisions: (state) => {
      const now = state.deployments.find((each) => each.name === name);
      const isSame = now && spec && JSON.stringify(valuesOf(now)) === JSON.stringify(valuesOf(spec));
      return now && !isSame ? [`${name} was changed; yours removes it.`] : [];
    },
    moved: (to) => removalOf(name, to),
  };
}
