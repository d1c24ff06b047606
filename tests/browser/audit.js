// Our own look at what a reader without eyes, mouse or full color vision needs. Returns a list of what is wrong.
const bad = [], seen = new Set();
const one = (selector) => document.querySelectorAll(selector).length;
for (const mark of ['main', 'header', 'footer', 'nav[aria-label]', 'h1']) {
  if (one(mark) !== 1) bad.push(mark + ': ' + one(mark));
}
let level = 0;
for (const h of document.querySelectorAll('h1, h2, h3')) {
  const now = +h.tagName[1];
  if (now > level + 1) bad.push('heading jumps to ' + h.outerHTML.slice(0, 80));
  if (!h.textContent.trim()) bad.push('empty heading');
  level = now;
}
for (const e of document.querySelectorAll('[id]')) { if (seen.has(e.id)) bad.push('twice: ' + e.id); seen.add(e.id); }
for (const e of document.querySelectorAll('button, select, input, [tabindex], [role=img], a')) {
  const named = e.getAttribute('aria-label') || (e.getAttribute('aria-labelledby') || '').split(' ').map(i => (document.getElementById(i) || {}).textContent || '').join('')
    || (e.labels && e.labels[0] && e.labels[0].textContent) || e.textContent;
  if (!named.trim()) bad.push('nameless: ' + e.outerHTML.slice(0, 120));
  if (+e.getAttribute('tabindex') > 0) bad.push('out of order: ' + e.outerHTML.slice(0, 80));
}
for (const t of document.querySelectorAll('table')) {
  if (!t.caption || !t.caption.textContent.trim()) bad.push('table without caption');
  for (const h of t.querySelectorAll('th')) if (!h.scope || !h.textContent.trim()) bad.push('header: ' + h.outerHTML.slice(0, 80));
}
const parse = (c) => (c.match(/[0-9.]+/g) || []).map(Number);
const light = (c) => { const f = c.slice(0, 3).map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
function ground(e) { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0.99) return c; } return [255, 255, 255]; }
let texts = 0;
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement;
  if (!walk.currentNode.textContent.trim() || ['SCRIPT', 'STYLE', 'OPTION', 'NOSCRIPT'].includes(e.tagName) || !e.getClientRects().length) continue;
  const style = getComputedStyle(e), ink = parse(e instanceof SVGElement ? style.fill : style.color), under = ground(e);
  const [a, b] = [light(ink), light(under)].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
  texts += 1;
  if (ratio < 4.5) bad.push(ratio.toFixed(2) + ' contrast: ' + e.outerHTML.slice(0, 100));
}
if (texts < 200) bad.push('only ' + texts + ' texts were looked at');
return bad;
