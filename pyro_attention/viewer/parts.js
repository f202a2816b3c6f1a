"use strict";
// Small parts of the page. Words are set as text and never read as markup.
const make = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

const draw = (tag, attributes) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
};

const parsed = (id) => JSON.parse(document.getElementById(id).textContent);

// Weights are whole numbers per mille.
const percent = (weight) => {
  if (weight === 0) return "0 %";
  if (weight < 10) return "<1 %";
  return weight > 990 && weight < 1000 ? ">99 %" : `${Math.round(weight / 10)} %`;
};

// The end of the scale of colors for values up to a largest one: weights over many regions are all small.
const scaleEnd = (largest) => [50, 100, 200, 500].find((end) => largest <= end) ?? 1000;

const paint = (node, weight, end) => {
  const place = Math.min(1, weight / end); // linear: half the weight is half as strong
  node.style.setProperty("--w", place.toFixed(3));
  node.classList.toggle("strong", place > 0.62); // where black and white are as easy to read
};

const panelKey = (panel) => JSON.stringify([panel.group, panel.name]);
// Names that tell the panels apart: what all of them share is left out.
const shortNames = (panels) => {
  const shared = (part) => panels.length > 1 && panels.every((panel) => panel[part] === panels[0][part]);
  const parts = ["group", "name"].filter((part) => !shared(part));
  return panels.map((panel) => parts.map((part) => panel[part]).filter(Boolean).join(" "));
};

// One place in the order of the Tab key for many buttons; arrow keys move among those that are shown.
const roving = (group, next = ["ArrowRight", "ArrowDown"], before = ["ArrowLeft", "ArrowUp"]) => {
  const buttons = () => [...group.querySelectorAll("button")].filter((one) => !one.closest("[hidden]"));
  const enter = (chosen) => {
    for (const one of group.querySelectorAll("button[tabindex='0']")) one.tabIndex = -1;
    chosen.tabIndex = 0;
  };
  group.addEventListener("focusin", (event) => event.target.matches("button") && enter(event.target));
  group.addEventListener("keydown", (event) => {
    const all = buttons();
    const place = all.indexOf(document.activeElement);
    let chosen;
    if (next.includes(event.key)) chosen = all[Math.min(place + 1, all.length - 1)];
    else if (before.includes(event.key)) chosen = all[Math.max(place - 1, 0)];
    else if (event.key === "Home") chosen = all[0];
    else if (event.key === "End") chosen = all[all.length - 1];
    if (place < 0 || !chosen) return;
    event.preventDefault();
    chosen.focus();
  });
  return (chosen) => enter(chosen ?? buttons()[0]);
};

// Rows to begin with: those with the word that is searched, or else words of content, roughly: those of four letters and more.
const contentWords = (words, search) => {
  const rows = words.map((_, row) => row);
  const chosen = [
    rows.filter((row) => search && words[row].toLocaleLowerCase().includes(search)),
    rows.filter((row) => (words[row].match(/\p{L}/gu) ?? []).length > 3),
    rows.filter((row) => /[\p{L}\p{N}]/u.test(words[row])),
  ];
  return chosen.find((some) => some.length) ?? rows;
};
