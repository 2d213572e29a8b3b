// The terminal has the keys as soon as it is there: nobody should have to click first.
const watcher = new MutationObserver(() => {
  const field = document.querySelector(".xterm-helper-textarea");
  if (field) {
    watcher.disconnect();
    field.focus();
  }
});
watcher.observe(document.getElementById("terminal"), { childList: true, subtree: true });
