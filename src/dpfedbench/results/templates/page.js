"use strict";
(() => {
  const all = (query, root = document) => [...root.querySelectorAll(query)];

  // The key that a cell is sorted by: its text, unless another is given.
  const key = (cell) => cell.dataset.key ?? cell.textContent;

  // Tables: a button in each column's head sorts, first upwards; what has no value goes last either way.
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table);
    const body = table.tBodies[0];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      const value = (row) => key(row.cells[column]);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const number = (text) => (text === "inf" ? Infinity : Number(text));
        const compare = (a, b) => {
          if (a === "" || b === "") return (a === "") - (b === "");
          const order = Number.isNaN(number(a)) || Number.isNaN(number(b))
            ? a.localeCompare(b, "en", { numeric: true }) : (number(a) > number(b)) - (number(a) < number(b));
          return up ? order : -order;
        };
        body.append(...all("tr", body).sort((a, b) => compare(value(a), value(b))));
      });
    });
  }

  // The ranking: of the rows of all configurations, those of the chosen task whose proven ε is small enough, the
  // most accurate first; then what needs no private data, and what is not private.
  const question = document.querySelector(".question form");
  if (question) {
    const heads = all("thead th", document.querySelector("#all-configurations")).map((head) => head.textContent);
    const field = (row, name) => row.cells[heads.indexOf(name)];
    const configurations = all("tr[data-group]").map((row) => ({
      row, task: field(row, "data").textContent, unit: field(row, "unit").textContent, group: row.dataset.group,
      epsilon: ["", "inf"].includes(row.dataset.proven) ? null : Number(row.dataset.proven) }));
    const table = document.querySelector(".ranking");
    const remark = document.querySelector(".question .once");
    const { task, unit, epsilon, limit } = question.elements;
    const levels = epsilon.dataset.values.split(" ").map(Number);
    const accuracy = ({ row }) => Number(key(field(row, "accuracy, %")));
    // The column of clients' own models is there if a run has them.
    const columns = ["method", "accuracy, %", "lost, points", "own models, %", "proven ε", "costs"].filter((name) => heads.includes(name));
    for (const name of ["place", ...columns]) {
      const head = document.createElement("th");
      head.scope = "col";
      head.textContent = name;
      if (name !== "place" && name !== "method") head.className = "number";
      table.tHead.rows[0].append(head);
    }
    const copied = (row, name) => {
      const cell = document.createElement("td");
      cell.dataset.label = name;
      if (name !== "method") cell.className = "number";
      cell.append(...[...field(row, name).childNodes].map((node) => node.cloneNode(true)));
      return cell;
    };
    const line = ({ row, group }, place) => {
      const shown = document.createElement("tr");
      shown.className = place ? "" : "baseline";
      const first = document.createElement("th");
      first.scope = "row";
      first.textContent = place || group;
      const cells = columns.map((name) => copied(row, name));
      const link = document.createElement("a");
      link.href = `#${row.dataset.run}`;
      const name = cells[0].firstChild;
      link.textContent = name.textContent.trim();
      name.replaceWith(link, " ");
      shown.append(first, ...cells);
      return shown;
    };
    // One more than the number of rows whose interval lies above that of this one.
    const placeOf = (one, rows) => 1 + rows.filter((other) => Number(other.row.dataset.low) > Number(one.row.dataset.high)).length;
    const rank = () => {
      const most = levels[Number(epsilon.value)];
      limit.textContent = most;
      epsilon.setAttribute("aria-valuetext", most);
      const ofTask = configurations.filter((one) => one.task === task.value);
      const ordered = (rows) => rows.sort((a, b) => accuracy(b) - accuracy(a));
      const keep = ordered(ofTask.filter((one) => one.unit === unit.value && one.epsilon !== null && one.epsilon <= most));
      const of = (group) => ordered(ofTask.filter((one) => one.group === group));
      const baselines = [...of("no private data"), ...of("not private").slice(0, 3)];
      table.tBodies[0].replaceChildren(
        ...keep.slice(0, 8).map((one) => line(one, placeOf(one, keep))), ...baselines.map((one) => line(one, 0)));
      const least = Math.min(...ofTask.filter((one) => one.unit === unit.value && one.epsilon !== null).map((one) => one.epsilon));
      const none = Number.isFinite(least) ? `No configuration keeps this ε; the least proven one is ${Number(least.toPrecision(3))}.`
        : "Nothing finite is proven for this unit.";
      remark.textContent = (keep.length ? `${keep.length} configurations keep this ε${keep.length > 8 ? ", the best 8 are shown" : ""}.`
        + " A place counts the 95 % intervals that lie above: rows that a test does not tell apart share one." : none)
        + " The account does not cover a choice made by this list. Times that would reveal secret cohorts are not told.";
    };
    const isPrivate = (one) => one.group === "private";
    const offerUnits = () => {
      const ofTask = configurations.filter((one) => isPrivate(one) && one.task === task.value);
      const units = [...new Set(ofTask.map((one) => one.unit))].sort();
      unit.replaceChildren(...units.map((name) => new Option(name, name)));
      rank();
    };
    const counts = new Map();
    for (const one of configurations.filter(isPrivate)) counts.set(one.task, (counts.get(one.task) ?? 0) + 1);
    const tasks = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
    task.replaceChildren(...tasks.map((name) => new Option(name, name)));
    task.addEventListener("input", offerUnits);
    question.addEventListener("input", rank);
    question.addEventListener("submit", (event) => event.preventDefault());
    offerUnits();
    // The first ε from 2 on that a configuration keeps.
    const keeps = (one, level) => isPrivate(one) && one.task === task.value && one.unit === unit.value && one.epsilon !== null && one.epsilon <= level;
    const start = levels.findIndex((level) => level >= 2 && configurations.some((one) => keeps(one, level)));
    if (start >= 0) epsilon.value = start;
    rank();
    question.hidden = table.hidden = false;
  }
})();
