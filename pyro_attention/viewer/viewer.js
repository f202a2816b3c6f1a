// The page itself: the list of views, and the words and matrices of the one that is chosen.
(() => {
  const root = document.querySelector(".viewer");
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  const index = parsed("viewer-index");
  const level = percent(1000 * index.level);
  const state = { view: null, number: -1, chosen: new Set(), active: null, least: 0, search: "", colors: "mean", end: 1000 };
  let lines = []; // {side, panel, buttons}
  let matrices = []; // {panel, rows, cells, heads}

  // The list

  const ORDERS = [
    ["given", "as in the text", () => 0],
    ["unsure", "most unsure first", (one) => -one.uncertainty],
    ["sure", "surest first", (one) => one.uncertainty],
    ["width", "widest credible intervals first", (one) => -one.width],
    ["difference", `where ${index.compared} differ most`, (one) => -one.difference],
  ];

  const enterItem = roving(part("items"));

  // A text is listed if one of its words is unsure enough and some word of either side holds what is searched.
  const isListed = (view) =>
    1000 * view.most >= state.least && view.words.toLocaleLowerCase().includes(state.search);

  const showList = () => {
    const entries = index.views.map((view, number) => ({ ...view, number }));
    const order = ORDERS.find(([name]) => name === part("order").value)[2];
    entries.sort((one, other) => order(one) - order(other) || one.number - other.number);
    const items = entries.map((view) => {
      const button = make("button", { type: "button", tabindex: -1, "data-number": view.number },
        make("span", { class: "name" }, view.title || `${view.number + 1}`),
        make("span", { class: "excerpt", dir: "auto" }, view.text),
        make("span", { class: "score" }, `unsure ${percent(Math.round(1000 * view.uncertainty))}`));
      const item = make("li", {}, button);
      item.hidden = !isListed(view);
      if (view.number === state.number) button.setAttribute("aria-current", "true");
      return item;
    });
    part("items").replaceChildren(...items);
    const left = items.filter((item) => !item.hidden);
    const count = index.views.length;
    part("count").textContent = left.length === count ? `${count} in all` : `${left.length} of ${count} have such words`;
    if (left.length) enterItem(part("items").querySelector("li:not([hidden]) [aria-current]") ?? undefined);
    for (const name of ["shown", "links"]) root.querySelector(`.${name}`).hidden = !left.length;
    part("none").hidden = left.length > 0;
    return left.map((item) => Number(item.querySelector("button").dataset.number));
  };

  // What is shown is a text of the list: after a change of the order its first one, after a filter the same one if it is left.
  const showFirst = (keep) => {
    const numbers = showList();
    if (!numbers.length || (keep && numbers.includes(state.number))) return;
    choose(numbers[0]);
    showList();
  };

  const prepareList = () => {
    const known = (name) => index.views.some((view) => view[name] !== null);
    part("colors").parentElement.hidden = !known("width"); // weights that are known have no interval
    for (const [name, text] of ORDERS) {
      if ((name === "width" || name === "difference") && !known(name)) continue;
      part("order").append(make("option", { value: name }, text));
    }
    part("list").hidden = index.views.length === 1;
    root.classList.toggle("single", index.views.length === 1);
    part("order").addEventListener("change", () => showFirst(false));
    part("search").addEventListener("input", () => {
      state.search = part("search").value.trim().toLocaleLowerCase();
      showFirst(true);
    });
    part("least").addEventListener("input", () => {
      state.least = 10 * Number(part("least").value);
      part("limit").textContent = percent(state.least);
      showFirst(true);
      showActive();
    });
    part("items").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      part("items").querySelector("[aria-current]")?.removeAttribute("aria-current");
      button.setAttribute("aria-current", "true");
      choose(Number(button.dataset.number));
    });
  };

  // One view

  const shownPanels = () => state.view.panels.filter((panel) => state.chosen.has(panelKey(panel)));
  // The only panel of a view needs no name.
  const panelNames = (panels) => (state.view.panels.length === 1 ? [""] : shortNames(panels));
  const mainPanel = () => shownPanels().find((panel) => panel.name !== "prior") ?? shownPanels()[0];
  const valueOf = (panel, row, column) =>
    state.colors === "mean" ? panel.mean[row][column] : widthOf(panel, row, column);

  const firstPanels = (panels) => {
    const posteriors = panels.filter((panel) => panel.name === "posterior");
    return posteriors.length > 1 ? posteriors.slice(0, 2) : panels.slice(0, 2);
  };

  const choose = (number) => {
    state.number = number;
    state.view = parsed(`viewer-${number}`);
    const { panels, title, target } = state.view;
    if (!shownPanels().length) state.chosen = new Set(firstPanels(panels).map(panelKey));
    part("title").textContent = title || `Number ${number + 1}`;
    const unsure = mainPanel().uncertainty;
    const rows = contentWords(target, state.search);
    state.active = { side: "target", place: rows.reduce((a, b) => (unsure[b] > unsure[a] ? b : a)) };
    showTools();
    showView();
  };

  const showTools = () => {
    const groups = new Map();
    for (const panel of state.view.panels) {
      if (!groups.has(panel.group)) groups.set(panel.group, []);
      groups.get(panel.group).push(panel);
    }
    const rows = [...groups].map(([group, panels]) => {
      const buttons = panels.map((panel) => make("button",
        { type: "button", tabindex: -1, "aria-pressed": state.chosen.has(panelKey(panel)), "data-key": panelKey(panel) },
        panel.name));
      const row = make("div", { role: "toolbar", "aria-label": group || "Weights", class: "group" },
        ...(group ? [make("span", { class: "name" }, group)] : []), ...buttons);
      roving(row)();
      return row;
    });
    part("panels").replaceChildren(part("panels").querySelector("legend"), ...rows);
    part("panels").hidden = state.view.panels.length === 1;
    part("colors").disabled = !state.view.panels.some((panel) => panel.count > 1);
  };

  const toggle = (button) => {
    const key = button.dataset.key;
    if (state.chosen.has(key) && shownPanels().length === 1) return; // something is always shown
    if (!state.chosen.delete(key)) state.chosen.add(key);
    button.setAttribute("aria-pressed", state.chosen.has(key));
    showView();
  };

  const wordButton = (side, word, place) =>
    make("button", { type: "button", class: "word", tabindex: -1, "data-side": side, "data-place": place }, word || "∅");

  const wordLine = (side, panel, panelName) => {
    const { names } = state.view;
    const name = panelName ? `${names[side]}, ${panelName}` : names[side];
    const buttons = state.view[side].map((word, place) => wordButton(side, word, place));
    const regions = side === "source" && state.view.picture;
    const group = make("div", { class: regions ? "regions" : "words", role: "toolbar", dir: "auto", "aria-label": name });
    if (regions) {
      const [rows, columns] = state.view.grid;
      group.style.setProperty("--rows", rows);
      group.style.setProperty("--columns", columns);
      buttons.forEach((button, place) => {
        button.textContent = "";
        button.setAttribute("aria-label", state.view.source[place]);
        button.title = state.view.source[place];
      });
      group.append(make("img", { src: state.view.picture, alt: "" }), make("div", { class: "veil" }, ...buttons));
    } else group.append(...buttons);
    roving(group)();
    lines.push({ side, panel, buttons });
    return make("div", { class: regions ? "line picture" : `line ${side}` }, make("span", { class: "label" }, name), group);
  };

  const matrix = (panel, panelName) => {
    const { source, target, names, grid } = state.view;
    const gold = new Map((state.view.gold ?? []).map(([column, row, sure]) => [`${row},${column}`, sure]));
    const short = (place) => (grid ? `${1 + Math.floor(place / grid[1])}, ${1 + (place % grid[1])}` : source[place]);
    const heads = source.map((word, column) =>
      make("th", { scope: "col", "data-side": "source", "data-place": column, title: word }, make("span", { dir: "auto" }, short(column))));
    const corner = make("td", { class: "corner" }, make("span", {}, `${names.source} →`),
      make("span", {}, `${names.target} ↓`));
    const rows = [], cells = [];
    target.forEach((word, row) => {
      const found = source.map((_, column) => {
        const cell = make("td", { "data-side": "target", "data-place": row, "data-other": column });
        const sure = gold.get(`${row},${column}`);
        if (sure !== undefined) cell.classList.add(sure ? "sure" : "possible");
        return cell;
      });
      const head = make("th", { scope: "row", "data-side": "target", "data-place": row, title: word }, make("span", { dir: "auto" }, word));
      rows.push(make("tr", {}, head, ...found));
      cells.push(found);
    });
    const table = make("table", { class: source.length > 14 ? "matrix small" : "matrix" },
      make("caption", {}, panelName), make("thead", {}, make("tr", {}, corner, ...heads)), make("tbody", {}, ...rows));
    matrices.push({ panel, rows, cells, heads });
    return make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": panelName ? `Matrix: ${panelName}` : "Matrix" }, table);
  };

  const showView = () => {
    lines = [];
    matrices = [];
    const panels = shownPanels(), names = panelNames(panels);
    part("text").replaceChildren(...panels.map((panel, place) => wordLine("source", panel, names[place])), wordLine("target", null));
    part("text").classList.toggle("pictures", Boolean(state.view.picture));
    part("matrices").replaceChildren(...panels.map((panel, place) => matrix(panel, names[place])));
    part("measure").textContent = `${state.colors === "mean" ? state.view.measure : "width of the credible interval"}, in percent`;
    const drawn = Math.max(...panels.map((panel) => panel.count));
    part("note").textContent = [
      "The bar under a word shows how unsure the model is of its links: the entropy of the numbers in its row, over the largest possible.",
      drawn > index.samples ? `Of ${drawn} samples ${index.samples} are drawn.` : "",
      state.view.picture ? "The clearer a region and the stronger its frame, the larger its weight." : "",
      state.view.gold ? "Frames are links that people have made, dotted where these are only possible." : "",
    ].join(" ");
    paintMatrices();
    showActive();
  };

  // All panels of a view have one scale, also those that are not shown: showing more changes no color.
  const showScale = () => {
    const { panels, source, target } = state.view;
    const values = panels.flatMap((panel) => target.flatMap((_, row) => source.map((_, column) => valueOf(panel, row, column))));
    state.end = scaleEnd(values.reduce((a, b) => Math.max(a, b), 0));
    part("ticks").replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map((share) => {
      const mark = make("span", {}, `${share * state.end / 10} %`);
      mark.style.insetInlineStart = `${100 * share}%`;
      return mark;
    }));
  };

  const paintMatrices = () => {
    showScale();
    for (const { panel, cells } of matrices) {
      cells.forEach((row, place) => row.forEach((cell, column) => {
        const value = valueOf(panel, place, column);
        paint(cell, value, state.end);
        cell.textContent = value < 10 ? "" : Math.round(value / 10);
      }));
    }
  };

  // The word that is pointed at

  const paintWords = () => {
    const { active } = state, main = mainPanel();
    part("text").classList.toggle("clear", active === null || active.side === "source"); // pictures without a veil
    for (const { side, panel, buttons } of lines) {
      buttons.forEach((button, place) => {
        const chosen = active !== null && active.side === side && active.place === place;
        let value = 0;
        if (active && active.side !== side) {
          const from = panel ?? (active.panel ? shownPanels().find((one) => panelKey(one) === active.panel) : null) ?? main;
          value = side === "source" ? valueOf(from, active.place, place) : valueOf(from, place, active.place);
        }
        paint(button, value, state.end);
        button.classList.toggle("current", chosen);
        if (side === "target") {
          button.style.setProperty("--unsure", `${main.uncertainty[place] / 10}%`);
          button.classList.toggle("dim", main.uncertainty[place] < state.least);
        }
      });
    }
  };

  const markMatrices = () => {
    const { active } = state;
    const column = active === null ? -1 : active.side === "source" ? active.place : active.other ?? -1;
    for (const { panel, rows, cells, heads } of matrices) {
      rows.forEach((row, place) => {
        row.classList.toggle("current", active !== null && active.side === "target" && active.place === place);
        row.classList.toggle("dim", panel.uncertainty[place] < state.least);
      });
      heads.forEach((head, place) => head.classList.toggle("current", place === column));
      cells.forEach((row) => row.forEach((cell, place) => cell.classList.toggle("current", place === column)));
    }
  };

  const showActive = () => {
    paintWords();
    markMatrices();
    const { active, view } = state;
    part("sentence").classList.toggle("unseen", active !== null); // the table says the same
    if (active === null) {
      part("word").textContent = "Links";
      part("sentence").textContent = "Point at a word, or move to it with the Tab and arrow keys.";
      part("table").replaceChildren();
      return;
    }
    const panels = shownPanels(), other = active.side === "target" ? "source" : "target";
    const found = linksOf(view, panels, active);
    part("word").textContent = `${view[active.side][active.place]} (${view.names[active.side]})`;
    const names = panelNames(panels);
    const caption = `${view.relation[active.side]} (${view.names[other]}): ${view.measure}`;
    part("sentence").textContent = linksSentence(panels, names, found.shown, level);
    const end = scaleEnd(Math.max(...view.panels.map((panel) => panel.largest)));
    const gold = (place) => (view.gold ?? []).some(([source, target]) =>
      (active.side === "target" ? target === active.place && source === place : source === active.place && target === place));
    part("table").replaceChildren(...linksTable(panels, names, found, { caption, level, active, gold, end }));
  };

  const point = (event) => {
    const node = event.target.closest?.("[data-side]");
    if (!node) return;
    const { side, place, other } = node.dataset;
    const line = lines.find((one) => one.buttons.includes(node));
    const next = { side, place: Number(place), other: other === undefined ? undefined : Number(other),
      panel: line?.panel ? panelKey(line.panel) : undefined };
    if (JSON.stringify(next) === JSON.stringify(state.active)) return;
    state.active = next;
    showActive();
  };

  // What the page listens to

  root.addEventListener("pointerover", point);
  root.addEventListener("focusin", point);
  root.addEventListener("click", point);
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || state.active === null) return;
    state.active = null;
    showActive();
  });
  part("panels").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) toggle(button);
  });
  part("colors").addEventListener("change", () => {
    state.colors = part("colors").value;
    showView();
  });

  prepareList();
  choose(0);
  showList();
  // milliseconds from opening the page to its being drawn, for whoever wants to know, such as a test
  requestAnimationFrame(() => setTimeout(() => { root.dataset.ready = Math.round(performance.now()); }));
})();
