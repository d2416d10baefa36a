// Twelve colors for groups and values, distinct on light and dark backgrounds. The rest is gray.

const COLOURS = [
  [51, 117, 214], [222, 110, 38], [46, 155, 102], [190, 75, 156], [128, 104, 214], [200, 60, 66],
  [30, 155, 170], [166, 124, 32], [110, 150, 40], [216, 92, 128], [90, 132, 160], [150, 100, 76],
];
const REST = [140, 148, 158];

/** Returns the colors of points by `field`, or by group if it is "". `colours` are indices of `palette`. */
export function coloursOf(map, field) {
  const { values, of } = field === "" ? { values: map.clusters.map(({ words }) => words.slice(0, 3).join(", ")), of: map.cluster } : map.fields[field];
  const sizes = new Uint32Array(values.length);
  for (const value of of) if (value >= 0) sizes[value] += 1;
  const ranked = [...sizes.keys()].sort((one, other) => sizes[other] - sizes[one]);
  const place = new Map(ranked.map((value, rank) => [value, Math.min(rank, COLOURS.length)]));
  const colours = Uint8Array.from(of, (value) => place.get(value) ?? COLOURS.length);
  const palette = [...COLOURS, REST];
  const members = (value) => () => [...of.keys()].filter((at) => of[at] === value);
  const legend = ranked.map((value) => ({ name: String(values[value]), colour: palette[place.get(value)], members: members(value) }));
  return { colours, palette, legend };
}
