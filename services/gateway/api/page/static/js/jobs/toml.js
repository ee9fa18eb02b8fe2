/** A recipe as TOML, as `weir run` and the page take it. Pure. */

/**
 * @param {object} recipe @param {object|null} changed the part that differs from the defaults; null: unknown
 * @returns {string} whose lines end in "# default" where a setting is one
 */
export function toml(recipe, changed = null) {
  return [...lines(recipe, changed, [])].join("\n").trim() + "\n";
}

function* lines(table, changed, path) {
  const given = Object.entries(table).filter(([, value]) => value !== null && value !== undefined);
  const own = given.filter(([, value]) => !isTable(value));
  if (path.length && (own.length || !given.length)) yield `\n[${path.map(key).join(".")}]`;
  for (const [name, value] of own)
    yield `${key(name)} = ${text(value)}${changed === null || name in changed ? "" : "  # default"}`;
  for (const [name, value] of given.filter(([, one]) => isTable(one)))
    yield* lines(value, changed === null ? null : (changed[name] ?? {}), [...path, name]);
}

const isTable = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const key = (name) => (/^[\w-]+$/.test(name) ? name : JSON.stringify(name));

function text(value) {
  if (Array.isArray(value)) return `[${value.map(text).join(", ")}]`;
  if (!isTable(value)) return JSON.stringify(value);
  const pairs = Object.entries(value).filter(([, one]) => one !== null);
  return `{ ${pairs.map(([name, one]) => `${key(name)} = ${text(one)}`).join(", ")} }`;
}
