/** Preact with HTML in template strings: text is always text, never markup. */
import { h, render } from "../../vendor/preact.js";
import htm from "../../vendor/htm.js";

export { render };
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/hooks.js";
export const html = htm.bind(h);
