// The theme puts wide tables into boxes that scroll. Here each box gets a name, and the keyboard can reach it.
new MutationObserver(() => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) {
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Table");
  }
}).observe(document, { childList: true, subtree: true });
