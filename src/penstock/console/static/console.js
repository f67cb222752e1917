// What pages do by themselves: the theme, parts that renew, sentences to copy, streams. Pages work without it.

const root = document.documentElement;

function themeButton() {
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const current = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const name = () => { button.textContent = current() === "dark" ? "Light" : "Dark"; };
  button.hidden = false;
  name();
  dark.addEventListener("change", name);
  button.addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* it holds for this page */ }
    name();
  });
}

// An element with an id and data-renew="SECONDS" is taken from the same address again and again.
function renewing() {
  const parts = [...document.querySelectorAll("[data-renew][id]")];
  if (!parts.length) return;
  const pause = Math.min(...parts.map((part) => Number(part.dataset.renew) || 5)) * 1000;
  const status = document.getElementById("status");
  let lost = false;
  async function renew() {
    if (!document.hidden) {
      try {
        const answer = await fetch(location.href, { headers: { "x-renews": "1" }, signal: AbortSignal.timeout(15000) });
        if (answer.status === 401) return location.reload();
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const found = parts.map((part) => page.getElementById(part.id));
        if (found.includes(null)) throw new Error(page.querySelector(".problem")?.textContent || "The page failed.");
        parts.forEach((part, at) => replace(part, found[at]));
        if (lost) status.replaceChildren();
        lost = false;
      } catch (error) {
        if (!lost) {
          const line = document.createElement("p");
          line.className = "problem";
          line.textContent = `What you see is old, and is tried again: ${error.message}`;
          status.replaceChildren(line);
        }
        lost = true;
      }
    }
    setTimeout(renew, pause);
  }
  setTimeout(renew, pause);
}

// Only where something changed, and not under somebody's hands.
function replace(old, fresh) {
  if (old.innerHTML === fresh.innerHTML) return;
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  if (focused && focused.matches("input, select, textarea")) return;
  const at = focused ? [...old.querySelectorAll("a, button, [tabindex]")].indexOf(focused) : -1;
  old.replaceChildren(...fresh.childNodes);
  if (at >= 0) old.querySelectorAll("a, button, [tabindex]")[at]?.focus({ preventScroll: true });
}

function copying() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = button.dataset.copy || document.getElementById(button.dataset.copyFrom).textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const box = document.createElement("textarea");
      box.value = text;
      document.body.append(box);
      box.select();
      document.execCommand("copy");
      box.remove();
    }
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1500);
  });
}

// Where the menu is one line that scrolls, the page's own entry is in sight.
document.querySelector(".menu [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
themeButton();
renewing();
copying();
