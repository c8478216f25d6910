(() => {
  const table = document.querySelector(".changes");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const text = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const [search, group, clear, count] = ["search", "group", "clear", "count"].map((id) =>
    document.getElementById(id),
  );
  let layer = null;

  const show = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !(
        words.every((word) => text.get(row).includes(word)) &&
        (!group.value || row.dataset.group === group.value) &&
        (layer === null || row.dataset.layer === layer)
      );
      shown += !row.hidden;
    }
    count.textContent = shown === rows.length ? `${shown} changes` : `${shown} of ${rows.length}`;
    clear.hidden = layer === null;
    clear.textContent = layer === "" ? "outside the layers ×" : `layer ${layer} ×`;
    for (const cell of document.querySelectorAll(".heat td[data-group]")) {
      cell.classList.toggle(
        "picked",
        layer !== null && cell.dataset.layer === layer && cell.dataset.group === group.value,
      );
    }
  };

  const sort = (head) => {
    const key = head.dataset.sort;
    const down = head.ariaSort
      ? head.ariaSort !== "descending"
      : key === "telling" || key === "relative";
    for (const other of table.tHead.rows[0].cells) other.ariaSort = null;
    head.ariaSort = down ? "descending" : "ascending";
    const value = (row) => (key === "address" ? row.dataset.address : Number(row.dataset[key]));
    const order = new Intl.Collator("en", { numeric: true });
    rows.sort(
      (a, b) =>
        (down ? -1 : 1) *
        (key === "address" ? order.compare(value(a), value(b)) : value(a) - value(b)),
    );
    body.append(...rows);
  };

  search.addEventListener("input", show);
  group.addEventListener("change", show);
  clear.addEventListener("click", () => {
    layer = null;
    show();
  });
  for (const head of table.querySelectorAll("th[data-sort]")) {
    head.addEventListener("click", () => sort(head));
  }
  for (const cell of document.querySelectorAll(".heat td[data-group]")) {
    cell.addEventListener("click", () => {
      const off = cell.classList.contains("picked");
      layer = off ? null : cell.dataset.layer;
      group.value =
        off || !group.querySelector(`option[value="${cell.dataset.group}"]`)
          ? ""
          : cell.dataset.group;
      show();
    });
  }
  show();
})();
