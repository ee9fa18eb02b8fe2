/** What is asked for again and again while a view is open. */
import { useEffect, useState } from "../shell/dom.js";

/**
 * The last answer of `ask`, and the last error if it came after it.
 * @param {(signal: AbortSignal) => Promise<any>} ask
 * @param {any[]} about what is asked about; a change asks anew
 * @param {number} every seconds; 0: once
 */
export function usePolled(ask, about, every = 0) {
  const [state, setState] = useState({ value: null, error: null });
  const [nudges, setNudges] = useState(0);
  useEffect(() => setState({ value: null, error: null }), about);
  useEffect(() => {
    const stop = new AbortController();
    let timer;
    const round = async () => {
      try {
        const value = await ask(stop.signal);
        setState({ value, error: null });
      } catch (error) {
        if (stop.signal.aborted) return;
        setState(({ value }) => ({ value, error }));
      }
      if (every && !stop.signal.aborted) timer = setTimeout(round, every * 1000);
    };
    round();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [...about, every, nudges]);
  return { ...state, again: () => setNudges((count) => count + 1) };
}
