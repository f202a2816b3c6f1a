// The links of one word: a sentence for screen readers, and a table with the samples.
const MOST_LINKS = 8;
const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const WIDTH = 124;

// Mean, ends of the interval and samples of one link; without samples the mean alone.
const linkOf = (panel, row, column) => {
  panel.found ??= panel.links.map((links) => new Map(links.map((link) => [link[0], link])));
  const mean = panel.mean[row][column];
  const link = panel.found[row]?.get(column);
  return link ? { mean, low: link[1], high: link[2], samples: link[3], largest: panel.largest } : { mean };
};

const widthOf = (panel, row, column) => {
  const link = linkOf(panel, row, column);
  return link.samples ? link.high - link.low : 0;
};

const intervalText = (link) => (link.samples ? `${percent(link.low).replace(" %", "")} to ${percent(link.high)}` : "");

const strip = (link, end) => {
  const at = (weight) => 4 + (weight / end) * (WIDTH - 8);
  const found = draw("svg", { width: WIDTH, height: 20, class: "strip", "aria-hidden": "true" });
  found.append(draw("line", { x1: at(0), x2: at(end), y1: 10, y2: 10, class: "axis" }));
  if (link.samples) {
    const width = Math.max(1, at(link.high) - at(link.low));
    found.append(draw("rect", { x: at(link.low), y: 5, width, height: 10, rx: 2, class: "interval" }));
    for (const digit of link.samples) { // the last digit stands for the largest sample of the panel
      const x = at((link.largest * DIGITS.indexOf(digit)) / 63);
      found.append(draw("line", { x1: x, x2: x, y1: 2, y2: 18, class: "sample" }));
    }
  }
  found.append(draw("circle", { cx: at(link.mean), cy: 10, r: 4, class: "mean" }));
  return found;
};

// Rows of the other side with their links in every panel, the largest first.
const linksOf = (view, panels, active) => {
  const toTarget = active.side === "target";
  const others = toTarget ? view.source : view.target;
  const link = (panel, other) => (toTarget ? linkOf(panel, active.place, other) : linkOf(panel, other, active.place));
  const all = others.map((word, place) => {
    const links = panels.map((panel) => link(panel, place));
    return { word, place, links, largest: Math.max(...links.map((one) => one.mean)) };
  });
  const likely = all.filter((one) => one.largest >= 10 || one.place === active.other);
  likely.sort((one, other) => other.largest - one.largest);
  const shown = likely.filter((one, rank) => rank < MOST_LINKS || one.place === active.other);
  return { shown, left: likely.length - shown.length };
};

const linksSentence = (panels, names, shown, level) =>
  panels.map((panel, number) => {
    const best = [...shown].sort((one, other) => other.links[number].mean - one.links[number].mean).slice(0, 3);
    const texts = best.map((one) => {
      const link = one.links[number];
      const interval = link.samples ? ` (${intervalText(link)})` : "";
      return `${one.word} ${percent(link.mean)}${interval}`;
    });
    return `${names[number] ? `${names[number]}: ` : ""}${texts.join(", ") || "nothing above 1 %"}.`;
  }).join(" ") + (panels.some((panel) => panel.count > 1) ? ` In brackets the ${level} credible interval.` : "");

const linksTable = (panels, names, { shown, left }, { caption, level, active, gold, end }) => {
  const drawn = panels.some((panel) => panel.count > 1); // exact weights have no interval
  const heads = ["", `0 to ${end / 10} %`, ...(drawn ? ["mean", `${level} interval`] : ["percent"])];
  const head = make("tr", {}, ...heads.map((one) => make("th", { scope: "col" }, one)));
  const table = make("table", { class: "linktable" }, make("caption", {}, caption), make("thead", {}, head));
  for (const one of shown) {
    const mark = gold(one.place) ? make("span", { class: "gold" }, " gold link") : "";
    const word = make("tr", {}, make("th", { scope: "rowgroup", colspan: heads.length, dir: "auto" }, one.word, mark));
    const rows = panels.map((panel, number) => {
      const link = one.links[number];
      return make("tr", {}, make("td", { class: "name" }, names[number]), make("td", {}, strip(link, end)),
        make("td", {}, percent(link.mean)), ...(drawn ? [make("td", {}, intervalText(link))] : []));
    });
    table.append(make("tbody", { class: one.place === active.other ? "current" : "" }, word, ...rows));
  }
  const rest = left > 0 ? [make("p", { class: "note" }, `${left} more of at least 1 % are not listed.`)] : [];
  return [table, ...rest];
};
