// What can be used at once first; curves when the browser has drawn it. The end of the file may still be on its way.
(function (lpwm) {
  "use strict";
  lpwm.start();
  lpwm.startPlay();
  lpwm.startArena();
  lpwm.startEpisodes();
  lpwm.startUnits();
  lpwm.marks.interactive = performance.now();
  window.addEventListener("load", () => requestAnimationFrame(() => setTimeout(lpwm.startPlots, 0)));
})(window.lpwm);
