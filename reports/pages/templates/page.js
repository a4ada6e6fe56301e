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

// A link to a row's runs opens them.
const open = () => {
  const name = location.hash.slice(1);
  const found = document.getElementById(name) ?? document.getElementById(decodeURIComponent(name));
  if (found?.matches("details")) found.open = true;
};
addEventListener("hashchange", open);
open();

// A number leads to the runs that it comes from.
const trails = JSON.parse(document.getElementById("trails").textContent);
const trail = document.getElementById("trail");
const made = (name, text, rest = {}) => Object.assign(document.createElement(name), { textContent: text, ...rest });
const show = (cell) => {
  const row = cell.closest("tr").cells[0].querySelector("a, strong").textContent;
  const column = [...cell.closest("table").tHead.rows].pop().cells[cell.cellIndex].dataset.name;
  const runs = cell.dataset.runs.split(" ").map((number) => trails[number]);
  const list = made("ul", "");
  for (const [variant, seed, directory, link, anchor, mlflow] of runs) {
    const item = made("li", "");
    item.append(made("a", variant, { href: `#${anchor}` }), ` seed ${seed}: `);
    item.append(made("a", directory, { href: link, className: "mono" }));
    if (mlflow) item.append(", MLflow ", made("span", mlflow, { className: "mono" }));
    list.append(item);
  }
  const told = [made("p", "", { className: "heading" })];
  told[0].append(made("strong", row), ` ${column}: `, made("strong", cell.firstChild.textContent.trim()));
  if (cell.title) told.push(made("p", cell.title));
  const noun = runs.length === 1 ? "run" : "runs";
  trail.replaceChildren(...told, made("p", `from ${runs.length} ${noun}:`, { className: "muted" }), list);
  Object.assign(trail.style, { left: "8px", top: "8px" }); // its width is not that of a corner it was in before
  trail.showPopover();
  const room = document.documentElement.clientWidth;
  const [at, size] = [cell.getBoundingClientRect(), trail.getBoundingClientRect()];
  const below = at.bottom + 6 + size.height <= innerHeight;
  trail.style.left = `${Math.max(8, Math.min(at.left, room - size.width - 8))}px`;
  trail.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - size.height - 6)}px`;
  trail.querySelector("a").focus();
};
trail.addEventListener("click", (event) => event.target.closest('a[href^="#"]') && trail.hidePopover());

const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const stop = (cell) => (cell?.matches("td[data-runs]") ? cell : cell?.querySelector(":scope > a"));
for (const table of document.querySelectorAll("table.sorts")) {
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("td[data-runs]");
    if (cell && !getSelection().toString()) show(cell);
  });
  table.addEventListener("keydown", (event) => {
    const cell = event.target.closest("tbody td, tbody th");
    if (!cell || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.target === cell && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      show(cell);
    }
    const [down, right] = MOVES[event.key] ?? [0, 0];
    if (!down && !right) return;
    let [row, column] = [cell.parentElement, cell.cellIndex];
    do {
      if (down) row = down > 0 ? row.nextElementSibling : row.previousElementSibling;
      column += right;
    } while (row?.cells[column] && !stop(row.cells[column]));
    if (!row?.cells[column]) return;
    event.preventDefault();
    stop(row.cells[column]).focus();
  });
}
