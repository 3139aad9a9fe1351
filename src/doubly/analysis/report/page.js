(function () {
  "use strict";
  var tip = document.getElementById("tip");
  function hide() { tip.hidden = true; }
  function show(event) {
    var target = event.target.closest ? event.target.closest("[data-tip]") : null;
    var text = target && target.getAttribute("data-tip");
    if (!text) { hide(); return; }
    tip.textContent = text;
    tip.hidden = false;
    var box = tip.getBoundingClientRect();
    var x = Math.min(event.clientX + 14, document.documentElement.clientWidth - box.width - 6);
    var y = event.clientY + 18;
    if (y + box.height > window.innerHeight - 6) { y = event.clientY - box.height - 12; }
    tip.style.left = Math.max(6, x) + "px";
    tip.style.top = Math.max(6, y) + "px";
  }
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", hide, { passive: true });
  document.addEventListener("keydown", function (event) { if (event.key === "Escape") { hide(); } });
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (each) { each.open = true; });
  });
})();
