"use strict";
(() => {
  const all = (query, root = document) => [...root.querySelectorAll(query)];

  // Tables: a button in each column's head sorts, first upwards; what has no value goes last either way.
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table);
    const body = table.tBodies[0];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      const value = (row) => row.cells[column].dataset.key;
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

  // Filters: a thing is shown if any of its facets [paper, data set, method, ε or null] fits all that was
  // chosen, and always if it has none.
  const filters = document.querySelector(".filters");
  const form = filters.querySelector("form");
  const things = all("[data-facets]").map((element) => ({ element, facets: JSON.parse(element.dataset.facets) }));
  const count = (kind, name) => {
    const found = all(kind);
    return `${found.filter((element) => !element.hidden).length} of ${found.length} ${name}`;
  };
  const apply = () => {
    const [paper, dataset, method] = ["paper", "dataset", "method"].map((name) => form.elements[name].value);
    const limit = form.elements.epsilon.value === "" ? null : Number(form.elements.epsilon.value);
    const fits = ([p, d, m, epsilon]) => (!paper || !p || p === paper) && (!dataset || !d || d === dataset)
      && (!method || !m || m === method) && (limit === null || (epsilon !== null && epsilon <= limit));
    for (const { element, facets } of things) element.hidden = facets.length > 0 && !facets.some(fits);
    for (const section of all("section.item")) section.hidden = all("tbody tr", section).every((row) => row.hidden);
    const narrowed = [...form.elements].some((element) => element.value);
    const kinds = { ".sortable tbody tr": "rows", "figure.item": "figures", ".run": "configurations" };
    const shown = Object.entries(kinds).map(([query, name]) => count(query, name)).join(", ");
    filters.querySelector("output").textContent = narrowed ? shown : "everything is shown";
  };
  form.addEventListener("input", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  form.addEventListener("submit", (event) => event.preventDefault());
  filters.hidden = false;
  filters.open = matchMedia("(min-width: 60rem)").matches;
  apply();

  // A link to a run opens it; if the filter hides what a link leads to, everything is shown again.
  const arrive = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    if (target.closest("[hidden]")) {
      form.reset();
      apply();
    }
    if (target.tagName === "DETAILS") target.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", arrive);
  addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.hash === location.hash) arrive();
  });
  arrive();
})();
