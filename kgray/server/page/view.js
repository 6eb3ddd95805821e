// The view library in one place: preact with htm's templates, and a store that components follow.
// Every text is set as text; nothing here or elsewhere writes HTML.
import { Fragment, h, render } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import htm from "htm";

const html = htm.bind(h);
export { Fragment, html, render, useEffect, useLayoutEffect, useMemo, useRef, useState };

/** A value that components follow. `set` merges changes and tells everybody. */
export class Store {
  constructor(value) {
    this.value = value;
    this.followers = new Set();
  }

  set(changes) {
    this.value = { ...this.value, ...changes };
    for (const follower of [...this.followers]) follower(this.value);
  }

  follow(follower) {
    this.followers.add(follower);
    return () => this.followers.delete(follower);
  }
}

/** The value of a store; the component is drawn again when it changes. */
export function useStore(store) {
  const [value, setValue] = useState(store.value);
  useLayoutEffect(() => {
    setValue(store.value);
    return store.follow(setValue);
  }, [store]);
  return value;
}

/**
 * What `load` resolves to: {data, fault, busy}. It is loaded again when `needs` change; an older answer
 * that arrives late is dropped, and the request behind it is given up.
 */
export function useLoaded(load, needs) {
  const [state, setState] = useState({ busy: true });
  useEffect(() => {
    const giveUp = new AbortController();
    setState((before) => ({ ...before, busy: true, fault: null }));
    Promise.resolve()
      .then(() => load(giveUp.signal))
      .then((data) => giveUp.signal.aborted || setState({ data, busy: false }))
      .catch((fault) => giveUp.signal.aborted || setState({ fault, busy: false }));
    return () => giveUp.abort();
  }, needs);
  return state;
}
