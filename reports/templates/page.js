// Tables sort by the column whose heading is pressed: first one way, then the other, then as written.
for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0];
  const written = [...body.rows];
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  const said = table.parentElement.appendChild(document.createElement("p"));
  said.className = "said";
  said.setAttribute("role", "status");
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
  };
  const sort = (column, direction) => {
    const rows = written.filter((row) => !row.classList.contains("group"));
    const filled = rows.filter((row) => key(row, column) !== "");
    const empty = rows.filter((row) => key(row, column) === "");
    filled.sort((one, other) => {
      const [a, b] = [key(one, column), key(other, column)];
      // Words, such as the dash of what does not exist, stand behind all numbers in both directions.
      if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
      const order = typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
      return direction === "ascending" ? order : -order;
    });
    body.replaceChildren(...filled, ...empty);
  };
  heads.forEach((head, column) => {
    const first = head.classList.contains("number") ? "descending" : "ascending";
    const second = first === "ascending" ? "descending" : "ascending";
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const next = before === null ? first : before === first ? second : null;
      for (const other of heads) other.removeAttribute("aria-sort");
      table.classList.toggle("sorted", next !== null);
      if (next === null) body.replaceChildren(...written);
      else {
        head.setAttribute("aria-sort", next);
        sort(column, next);
      }
      said.textContent = next === null ? "in the order as written" : `sorted by ${head.dataset.name}, ${next}`;
    });
  });
}
