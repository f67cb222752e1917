// The tail and the search of a topic's records: rows come as HTML over server-sent events.

const table = document.getElementById("records");
const body = table.tBodies[0];
const ROWS_MAX = 500;

function rowsOf(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  return [...holder.content.querySelectorAll("tr")];
}

function add(rows, atTop) {
  if (!rows.length) return;
  body.querySelector(".empty")?.remove();
  rows.forEach((row) => row.classList.add("fresh"));
  if (atTop) body.prepend(...rows);
  else body.append(...rows);
  while (body.rows.length > ROWS_MAX) (atTop ? body.lastElementChild : body.firstElementChild).remove();
}

function tail() {
  const button = document.getElementById("tail");
  const pause = document.getElementById("pause");
  const status = document.getElementById("tailing");
  let source = null;
  let held = null; // Rows that wait while the page stands still; null while it does not.
  button.hidden = false;
  function goOn() {
    const rows = held || [];
    held = null;
    pause.textContent = "Pause";
    pause.setAttribute("aria-pressed", "false");
    add(rows, true);
  }
  function stop(words) {
    source.close();
    source = null;
    goOn();
    pause.hidden = true;
    button.textContent = "Follow the tail";
    button.setAttribute("aria-pressed", "false");
    status.textContent = words;
  }
  pause.addEventListener("click", () => {
    if (held) {
      goOn();
      status.textContent = "New records appear at the top.";
    } else {
      held = [];
      pause.textContent = "Go on";
      pause.setAttribute("aria-pressed", "true");
      status.textContent = "Paused. What comes is kept until you go on.";
    }
  });
  button.addEventListener("click", () => {
    if (source) return stop("Stopped.");
    source = new EventSource(table.dataset.tail);
    button.textContent = "Stop";
    button.setAttribute("aria-pressed", "true");
    status.hidden = false;
    status.textContent = "Connecting…";
    let count = 0;
    source.addEventListener("ready", () => {
      status.textContent = "New records appear at the top.";
      pause.hidden = false;
    });
    source.addEventListener("records", (event) => {
      const rows = rowsOf(event.data);
      if (held) held = [...rows, ...held].slice(0, ROWS_MAX);
      else add(rows, true);
    });
    source.addEventListener("count", (event) => {
      const before = count;
      count = Number(event.data);
      if (held) return;
      if (!before || Math.floor(count / 100) > Math.floor(before / 100)) status.textContent = `${count} new records.`;
    });
    source.addEventListener("failed", (event) => stop(event.data));
    source.addEventListener("end", () => stop("The end."));
    source.onerror = () => { if (source) status.textContent = "The connection broke, and is tried again."; };
  });
}

function search() {
  const part = document.getElementById("search");
  if (!part) return;
  const bar = part.querySelector("progress");
  const words = document.getElementById("found");
  const cancel = document.getElementById("cancel");
  const source = new EventSource(part.dataset.stream);
  const number = new Intl.NumberFormat("en");
  let last = { read: 0, total: 0, found: 0, rate: 0 };
  const end = (sentence) => {
    source.close();
    cancel.hidden = true;
    words.textContent = sentence;
    part.dataset.done = "1";
  };
  cancel.hidden = false;
  cancel.addEventListener("click", () => end(`Cancelled after ${number.format(last.read)} records; ${last.found} found.`));
  source.addEventListener("records", (event) => add(rowsOf(event.data), false));
  source.addEventListener("progress", (event) => {
    last = JSON.parse(event.data);
    bar.max = Math.max(1, last.total);
    bar.value = last.read;
    words.textContent = `${number.format(last.read)} of ${number.format(last.total)} records, ${last.found} found` +
      (last.rate ? `, ${number.format(last.rate)} in a second.` : ".");
  });
  source.addEventListener("failed", (event) => end(event.data));
  source.addEventListener("end", () => {
    bar.value = bar.max;
    end(last.full
      ? `Stopped at ${last.found} found. Search for something rarer.`
      : `${last.found} found in ${number.format(last.total)} records.`);
  });
  source.onerror = () => end("The connection broke: load the page again to search once more.");
}

tail();
search();
