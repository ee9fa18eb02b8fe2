/** A response's text cut where a token or a mark begins or ends. Pure. */

/**
 * @param {string[]} tokens whose concatenation is the text
 * @param {{start: number, end: number, verdict: string, note: string}[]} marks in characters (code points)
 * @returns {{mark: object|null, parts: {token: number, text: string}[]}[]} in the order of the text
 */
export function pieces(tokens, marks) {
  const inUnits = unitOffsets(tokens.join(""));
  const placed = marks
    .map((mark) => ({ mark, start: inUnits(mark.start), end: inUnits(mark.end) }))
    .sort((a, b) => a.start - b.start);
  const cuts = [...new Set(placed.flatMap(({ start, end }) => [start, end]))].sort((a, b) => a - b);
  const runs = [];
  let at = 0;
  tokens.forEach((text, token) => {
    const end = at + text.length;
    const edges = [at, ...cuts.filter((cut) => cut > at && cut < end), end];
    for (let edge = 1; edge < edges.length; edge += 1) {
      const mark = markAt(placed, edges[edge - 1]);
      if (!runs.length || runs.at(-1).mark !== mark) runs.push({ mark, parts: [] });
      runs.at(-1).parts.push({ token, text: text.slice(edges[edge - 1] - at, edges[edge] - at) });
    }
    at = end;
  });
  return runs;
}

/** The innermost mark at a place: the one that begins last. */
function markAt(placed, place) {
  return placed.findLast(({ start, end }) => start <= place && place < end)?.mark ?? null;
}

/** From characters as Python counts them to JavaScript's units: they differ beyond U+FFFF. */
function unitOffsets(text) {
  if (!/[\ud800-\udbff]/.test(text)) return (character) => character;
  const offsets = [0];
  for (const character of text) offsets.push(offsets.at(-1) + character.length);
  return (character) => offsets[Math.min(character, offsets.length - 1)];
}
