// Before anything is drawn: the theme that was chosen, if one was.
try {
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // Without storage the system's choice holds.
}
