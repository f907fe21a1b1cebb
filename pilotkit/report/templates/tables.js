// Every table sorts by a click on the head of a column; a long one has a filter above it. The page is whole without.
"use strict";
(() => {
  const LONG = 8;
  const SIZES = {
    B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15,
    us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400,
  };
  const NUMBER = /^([+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)(?: ?([A-Za-z%]+))?(?:\/s)?(?: (\d+) (s|min|h))?$/;

  // What a cell says without the word for where it comes from.
  const text = (row, column) => {
    const cell = row.cells[column].cloneNode(true);
    cell.querySelectorAll(".origin").forEach(word => word.remove());
    return cell.textContent.trim();
  };
  const number = words => {
    const found = NUMBER.exec(words);
    if (!found) return null;
    const first = Number(found[1].replaceAll(",", "")), size = SIZES[found[2]] ?? 1;
    return first * size + (found[3] ? (found[1].startsWith("-") ? -1 : 1) * Number(found[3]) * SIZES[found[4]] : 0);
  };

  // A column counts when all that begins with a digit is a number; words like "none" then come last, either way.
  const sort = (table, column, descending) => {
    const rows = [...table.tBodies[0].rows].map(row => ({row, words: text(row, column)}));
    const counts = rows.some(({words}) => number(words) !== null)
      && rows.every(({words}) => number(words) !== null || !/^[+-]?\d/.test(words));
    const turn = descending ? -1 : 1;
    rows.sort((one, other) => {
      if (!counts) return turn * one.words.localeCompare(other.words, undefined, {numeric: true});
      const [a, b] = [number(one.words), number(other.words)];
      if (a === null || b === null) return (a === null) - (b === null);
      return turn * (a - b);
    });
    table.tBodies[0].append(...rows.map(({row}) => row));
  };

  const addSorting = table => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        heads.forEach(other => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(table, column, descending);
      });
    });
    table.classList.add("sorts");
  };

  const addFilter = table => {
    const rows = [...table.tBodies[0].rows], box = document.createElement("div");
    const label = document.createElement("label"), field = document.createElement("input");
    const count = document.createElement("output");
    box.className = "filter";
    field.type = "search";
    label.append(document.body.dataset.filter, " ", field);
    box.append(label, " ", count);
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      rows.forEach(row => { row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word)); });
      count.value = words.length ? `${rows.filter(row => !row.hidden).length} / ${rows.length}` : "";
    });
    table.before(box);
  };

  document.querySelectorAll("table").forEach(table => {
    const rows = table.tHead ? table.tBodies[0].rows.length : 0;
    if (rows > 1) addSorting(table);
    if (rows >= LONG) addFilter(table);
  });
})();
