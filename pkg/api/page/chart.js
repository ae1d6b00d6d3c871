// A chart of the last ten minutes: lines and areas over time, drawn as SVG in
// the element's own pixels.

const svg = 'http://www.w3.org/2000/svg';
const margin = { top: 8, right: 8, bottom: 20, left: 52 };
export const points = 600;

function element(name, attributes, parent) {
  const e = document.createElementNS(svg, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  parent.append(e);
  return e;
}

// ceiling returns the next number above v that reads well on an axis and has
// a half that does, too: 1, 2, 4, 6 or 10 times a power of ten. Units are not
// halved where whole is set.
function ceiling(v, whole) {
  if (!(v > 0)) return whole ? 2 : 1e-3;
  const power = 10 ** Math.floor(Math.log10(v));
  const top = [1, 2, 4, 6, 10].find((m) => m * power >= v * 0.9999) * power;
  return whole ? Math.max(2, top) : top;
}

// A Chart has series, each with
//   name   as in the data and the style sheet
//   title  for the legend
//   kind   line, step (a value that holds until the next), area, or stack: an
//          area on top of the stack before it
//   loose  true: the scale does not follow it where that would leave nothing
//          to see of the others
export class Chart {
  constructor(template, { title, series, format, axis, whole, place }) {
    this.root = template.content.cloneNode(true).firstElementChild;
    Object.assign(this, { title, series, format, axis, whole, place });
    this.svg = this.root.querySelector('svg');
    this.when = this.root.querySelector('.when');
    this.root.querySelector('.title').textContent = title;
    this.svg.setAttribute('aria-label', `${title} of ${place}: the time that is read`);
    const legend = this.root.querySelector('.legend');
    this.values = new Map();
    for (const s of series) {
      const item = document.createElement('li');
      const key = document.createElementNS(svg, 'svg');
      key.setAttribute('class', 'key');
      key.setAttribute('viewBox', '0 0 18 10');
      key.setAttribute('aria-hidden', 'true');
      const filled = s.kind === 'area' || s.kind === 'stack';
      if (filled) element('rect', { class: `fill ${s.name}`, x: 0, y: 0, width: 18, height: 10 }, key);
      element('path', { class: `line ${s.name}`, d: filled ? 'M0 1H18' : 'M0 5H18' }, key);
      const value = document.createElement('b');
      item.append(key, ` ${s.title} `, value);
      legend.append(item);
      this.values.set(s.name, value);
    }
    this.grid = element('g', { class: 'grid' }, this.svg);
    this.shapes = new Map(series.map((s) => [s.name, {
      fill: element('path', { class: `fill ${s.name}` }, this.svg),
      line: element('path', { class: `line ${s.name}` }, this.svg),
    }]));
    this.note = element('text', { class: 'above' }, this.svg);
    this.cursor = element('path', { class: 'cursor' }, this.svg);
  }

  // listen calls move with the point that is under the pointer or that the
  // keys have moved to, counted from the newest, which is 0; null for none.
  listen(move) {
    const at = (e) => {
      const box = this.svg.getBoundingClientRect();
      const width = box.width - margin.left - margin.right;
      const part = (e.clientX - box.left - margin.left) / width;
      return Math.round((1 - Math.min(1, Math.max(0, part))) * (points - 1));
    };
    this.svg.addEventListener('pointermove', (e) => move(at(e)));
    this.svg.addEventListener('pointerdown', (e) => move(at(e)));
    this.svg.addEventListener('pointerleave', (e) => e.pointerType === 'mouse' && move(null));
    this.svg.addEventListener('blur', () => move(null));
    this.svg.addEventListener('keydown', (e) => {
      const now = this.read ?? 0;
      const to = {
        ArrowLeft: now + 1, ArrowDown: now + 1, ArrowRight: now - 1, ArrowUp: now - 1,
        PageDown: now + 30, PageUp: now - 30, Home: points - 1, End: 0,
      }[e.key];
      if (to === undefined && e.key !== 'Escape') return;
      e.preventDefault();
      move(to === undefined ? null : Math.min(points - 1, Math.max(0, to)));
    });
  }

  // draw shows data, which has an array of values for each series, oldest
  // first and the newest last. read is the point to read, or null.
  draw(data, read, time) {
    this.read = read;
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    if (width === 0) return;
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    const left = margin.left, right = width - margin.right;
    const top = margin.top, bottom = height - margin.bottom;
    const { most, above } = this.scale(data);
    const x = (i, n) => right - ((n - 1 - i) / (points - 1)) * (right - left);
    const y = (v) => bottom - (Math.min(v, most * 1.02) / most) * (bottom - top);

    this.drawGrid(left, right, top, bottom, most, y);
    let base = null;
    for (const s of this.series) {
      let values = data[s.name];
      const shape = this.shapes.get(s.name);
      if (s.kind === 'stack') {
        const under = base;
        values = values.map((v, i) => (v == null ? null : v + (under ? under[i] ?? 0 : 0)));
        shape.fill.setAttribute('d', area(values, under, x, y));
        base = values;
      } else if (s.kind === 'area') {
        shape.fill.setAttribute('d', area(values, null, x, y));
      }
      // A stack with nothing in it would draw over the one below.
      const hidden = s.kind === 'stack' && data[s.name].every((v) => !v);
      shape.line.setAttribute('d', hidden ? '' : line(values, x, y, s.kind === 'step'));
    }
    this.note.setAttribute('x', right);
    this.note.setAttribute('y', top + 11);
    this.note.textContent = above;
    this.cursor.setAttribute('d', read == null ? '' : `M${x(points - 1 - read, points).toFixed(1)} ${top}V${bottom}`);
    this.tell(data, read, time);
  }

  // scale returns the end of the axis, and a note on what lies above it.
  scale(data) {
    const highest = (name) => data[name].reduce((m, v) => (v > m ? v : m), 0);
    let most = 0, stacked = [];
    for (const s of this.series) {
      if (s.kind === 'stack') {
        stacked = data[s.name].map((v, i) => (v ?? 0) + (stacked[i] ?? 0));
        most = Math.max(most, ...stacked);
      } else if (!s.loose) {
        most = Math.max(most, highest(s.name));
      }
    }
    let above = '';
    for (const s of this.series.filter((s) => s.loose)) {
      const v = highest(s.name);
      if (v > Math.max(200, 8 * most)) above = `${s.title} ${this.format(data[s.name].at(-1))}, above the scale`;
      else most = Math.max(most, v);
    }
    return { most: ceiling(most, this.whole), above };
  }

  drawGrid(left, right, top, bottom, most, y) {
    this.grid.replaceChildren();
    for (const v of [0, most / 2, most]) {
      const at = Math.round(y(v)) + 0.5;
      element('path', { d: `M${left} ${at}H${right}` }, this.grid);
      element('text', { x: left - 6, y: at + 4, class: 'y' }, this.grid).textContent = this.axis(v);
    }
    const label = (part, text, anchor) => {
      const at = right - part * (right - left);
      element('path', { d: `M${at} ${bottom}v4` }, this.grid);
      element('text', { x: at, y: bottom + 16, 'text-anchor': anchor }, this.grid).textContent = text;
    };
    label(1, '10 min ago', 'start');
    label(0.5, '5 min', 'middle');
    label(0, 'now', 'end');
  }

  // tell writes the values at the point that is read, and of now otherwise.
  tell(data, read, time) {
    const when = read == null ? '' : time(read);
    this.when.textContent = when;
    const said = [];
    for (const s of this.series) {
      const values = data[s.name];
      const text = this.format(values[values.length - 1 - (read ?? 0)]);
      this.values.get(s.name).textContent = text;
      said.push(`${s.title} ${text}`);
    }
    this.svg.setAttribute('aria-valuenow', points - 1 - (read ?? 0));
    this.svg.setAttribute('aria-valuetext', `${when || 'now'}: ${said.join(', ')}`);
  }
}

// runs calls each with the first and the last index of values without a gap.
function runs(values, each) {
  for (let i = 0; i < values.length; i++) {
    if (values[i] == null) continue;
    const first = i;
    while (i + 1 < values.length && values[i + 1] != null) i++;
    each(first, i);
  }
}

function line(values, x, y, step) {
  let d = '';
  const n = values.length;
  runs(values, (first, last) => {
    d += `M${x(first, n).toFixed(1)} ${y(values[first]).toFixed(1)}`;
    if (first === last) d += 'h.1'; // a dot
    for (let i = first + 1; i <= last; i++) {
      if (step) {
        if (values[i] === values[i - 1] && i < last) continue;
        d += `H${x(i, n).toFixed(1)}V${y(values[i]).toFixed(1)}`;
      } else {
        d += `L${x(i, n).toFixed(1)} ${y(values[i]).toFixed(1)}`;
      }
    }
  });
  return d;
}

function area(values, under, x, y) {
  let d = '';
  const n = values.length;
  runs(values, (first, last) => {
    d += `M${x(first, n).toFixed(1)} ${y(under?.[first] ?? 0).toFixed(1)}`;
    for (let i = first; i <= last; i++) d += `L${x(i, n).toFixed(1)} ${y(values[i]).toFixed(1)}`;
    for (let i = last; i >= first; i--) d += `L${x(i, n).toFixed(1)} ${y(under?.[i] ?? 0).toFixed(1)}`;
    d += 'Z';
  });
  return d;
}
