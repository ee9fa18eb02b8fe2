/** Keys of a view, where nothing is being typed. */
import { html, useLayoutEffect } from "./dom.js";
import { Dialog, Facts } from "./parts.js";

/** @param {Object<string, [string, (() => void)|null]>} keys what a key is called, and what it does */
export function useKeys(keys) {
  useLayoutEffect(() => {
    // not after the paint: what is shown and what the keys do are of one state
    const press = (event) => {
      const isTyping = event.target.closest("input, select, textarea, dialog[open]");
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
      event.preventDefault();
      keys[event.key][1]();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
}

export const Keys = ({ keys, onClose }) =>
  html`<${Dialog} label="Keys" onClose=${onClose}>
    <h2>Keys</h2>
    <${Facts} facts=${Object.entries(keys).map(([key, [text]]) => [html`<kbd>${key}</kbd>`, text])} />
    <form method="dialog"><button autofocus>Close</button></form>
  <//>`;
