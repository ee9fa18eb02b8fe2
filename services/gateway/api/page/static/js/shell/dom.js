/** Preact with HTML in template strings: text is always text, never markup. */
import { h, render } from "../../vendor/preact.js";
import htm from "../../vendor/htm.js";

export { render };
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/hooks.js";

/** Text in which what would turn its direction is shown by its code point, such as ⟨U+202E⟩. */
const visible = (text) =>
  text.replace(
    /[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/g,
    (one) => `⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`,
  );
const shown = (child) =>
  typeof child === "string" ? visible(child) : Array.isArray(child) ? child.map(shown) : child;

export const html = htm.bind((type, props, ...children) => h(type, props, ...children.map(shown)));
