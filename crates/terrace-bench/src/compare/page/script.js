"use strict";
document.querySelectorAll("nav.legend button").forEach((b, i) => {
  b.addEventListener("click", () => {
    const dim = document.body.classList.toggle("dim-" + i);
    b.setAttribute("aria-pressed", String(!dim));
  });
});
document.querySelectorAll("table.sorts").forEach((table) => {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const order = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const [m, n] = [Number(x), Number(y)];
        const d = Number.isNaN(m) || Number.isNaN(n) ? x.localeCompare(y) : m - n;
        return up ? d : -d;
      };
      [...body.rows].sort(order).forEach((row) => body.append(row));
    });
  });
});
const filters = [...document.querySelectorAll("select[data-filter]")];
const choose = () => {
  document.querySelectorAll("table.sorts tbody tr").forEach((row) => {
    row.hidden = filters.some((f) => f.value && row.dataset[f.dataset.filter] !== f.value);
  });
};
filters.forEach((f) => f.addEventListener("change", choose));
choose();
