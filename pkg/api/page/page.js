// The live page: asks the agent once a second for its status, its history and
// whether it is ready, and shows them. It asks again and does not listen, so
// that an agent that is gone, a proxy in between and a laptop that slept need
// no care of their own.

import { Chart, points } from './chart.js';
import { ago, clock, compact, compactRate, count, known, rate, seconds, unknown } from './units.js';

const interval = 1000;
const patience = 4000; // for one answer
const batch = 50; // targets whose whole history is asked for at once
const openAtFirst = 4; // so many targets are shown open; more are a list
const filterFrom = 8;

const reasons = [
  ['limit', 'the limit was reached'],
  ['pace', 'its turn was too far off'],
  ['source', 'its source had too many'],
  ['flood', 'it was a stranger beside a SYN flood'],
  ['hold_timeout', 'it waited in vain'],
];
const signals = { service: 'Service time', rtt: 'TCP round trip', connection: 'Service time', accept: 'Service time' };

const $ = (id) => document.getElementById(id);
const cards = new Map(); // by scope and port
let paused = false;
let asked = 0; // when the history was last had, by performance.now()
let heard; // when the agent last answered, a Date

const name = (t) => `${t.scope}/${t.port}`;
const add = (...values) => values.reduce((sum, v) => (v == null ? sum : (sum ?? 0) + v), null);

// Past is the history of a target: arrays that end at the same second, which
// is counted by the clock and so goes on over a restart of the agent.
class Past {
  constructor() {
    this.second = null;
    this.series = {};
    this.changes = [];
    this.whole = false; // it was asked for once
  }

  // merge takes in what the agent has sent, which may overlap what is here.
  merge(h, t) {
    const end = Math.floor(Date.parse(h.time) / 1000);
    const rejected = t.rejected_per_second;
    const sent = {
      limit: t.limit, in_flight: t.in_flight, waiting: t.waiting,
      latency: t.latency_seconds, baseline: t.baseline_seconds,
      admitted: t.admitted_per_second, would_reject: t.would_reject_per_second,
      rejected: rejected.limit.map((_, i) => add(...reasons.map(([r]) => rejected[r]?.[i]))),
    };
    for (const [reason] of reasons) sent[`rejected_${reason}`] = rejected[reason] ?? [];
    const ahead = this.second == null ? points : Math.min(points, Math.max(0, end - this.second));
    this.second = Math.max(end, this.second ?? end);
    for (const [key, values] of Object.entries(sent)) {
      const kept = (this.series[key] ??= new Array(points).fill(null));
      for (let i = 0; i < ahead; i++) { kept.shift(); kept.push(null); }
      const last = points - 1 - (this.second - end);
      values.forEach((v, i) => {
        const at = last - (values.length - 1 - i);
        if (at >= 0) kept[at] = v;
      });
    }
    // What is kept from before may be of an agent that is gone.
    const first = t.changes.length ? Date.parse(t.changes[0].time) : Infinity;
    this.changes = this.changes.filter((c) => Date.parse(c.time) < first).concat(t.changes).slice(-20);
  }

  now(key) {
    return this.series[key]?.at(-1);
  }
}

// Card is what the page shows of a target.
class Card {
  constructor(t) {
    this.past = new Past();
    this.read = null;
    this.root = $('target').content.cloneNode(true).firstElementChild;
    this.root.id = name(t);
    this.parts = {};
    for (const e of this.root.querySelectorAll('[data-is]')) this.parts[e.dataset.is] = e;
    this.bar = this.root.querySelector('.bar i');
    const place = `${t.rule}, port ${t.port}`;
    const signal = signals[t.signal] ?? t.signal;
    this.charts = [
      new Chart($('chart'), {
        place, title: 'In flight and limit', format: count, axis: compact, whole: true,
        series: [
          { name: 'in_flight', title: 'in flight', kind: 'area' },
          { name: 'waiting', title: 'waiting', kind: 'line' },
          { name: 'limit', title: 'limit', kind: 'step', loose: true },
        ],
      }),
      new Chart($('chart'), {
        place, title: signal, format: seconds, axis: seconds,
        series: [
          { name: 'latency', title: 'mean', kind: 'line' },
          { name: 'baseline', title: 'baseline', kind: 'line' },
        ],
      }),
      new Chart($('chart'), {
        place, title: t.unit === 'request' ? 'Requests a second' : 'Connections a second', format: rate, axis: compactRate, whole: true,
        series: [
          { name: 'admitted', title: 'admitted', kind: 'stack' },
          { name: 'rejected', title: 'refused', kind: 'stack' },
          ...(t.mode === 'observe' ? [{ name: 'would_reject', title: 'would be refused', kind: 'line' }] : []),
        ],
      }),
    ];
    this.mode = t.mode;
    for (const c of this.charts) {
      this.root.querySelector('.charts').append(c.root);
      c.listen((read) => { this.read = read; this.draw(); });
    }
    this.root.addEventListener('toggle', () => this.root.open && (this.past.whole ? this.draw() : wake()));
    new ResizeObserver(() => this.draw()).observe(this.root.querySelector('.charts'));
  }

  set(part, text) {
    const e = this.parts[part];
    if (e.textContent !== text) e.textContent = text;
  }

  // show writes the state of the target as the status and the history say.
  show(t) {
    const past = this.past, set = (part, text) => this.set(part, text);
    set('rule', t.rule);
    set('place', `port ${t.port}${t.scope === 'host' ? '' : `, ${t.scope}`}`);
    set('in_flight', count(t.in_flight));
    set('limit', count(t.limit));
    set('waiting', count(t.waiting));
    set('waiting_most', t.hold.max_waiting ? `of ${count(t.hold.max_waiting)}` : 'none may wait');
    set('signal', signals[t.signal] ?? t.signal);
    set('latency', t.window.samples ? seconds(t.window.mean_seconds) : unknown);
    set('baseline', seconds(known(t.baseline_seconds)));
    set('admitted_rate', rate(past.now('admitted')));
    set('admitted_total', count(t.admitted_total));
    const observe = t.mode === 'observe';
    set('refused', observe ? 'Would refuse' : 'Refused');
    set('rejected_rate', rate(past.now(observe ? 'would_reject' : 'rejected')));
    set('rejected_total', count(observe ? t.would_reject_total : add(...reasons.map(([r]) => t.rejected_total[r]))));
    this.bar.style.width = `${Math.min(100, t.limit ? (100 * t.in_flight) / t.limit : 100)}%`;
    this.state(t);
    this.tables(t);
  }

  state(t) {
    const refusing = this.past.now('rejected') > 0, would = this.past.now('would_reject') > 0;
    let [text, kind] = ['within its limit', 'calm'];
    if (t.at_floor && t.gradient > 0 && t.gradient < 0.7) [text, kind] = ['slow at its least limit', 'busy'];
    if (t.in_flight >= t.limit) [text, kind] = ['at its limit', 'busy'];
    if (t.waiting > 0) [text, kind] = ['lets wait', 'busy'];
    if (refusing) [text, kind] = ['refuses', 'refuse'];
    if (t.mode === 'observe') [text, kind] = would ? ['observes: would refuse', 'busy'] : ['observes', 'calm'];
    if (t.flood) [text, kind] = ['is flooded with SYNs', 'refuse'];
    if (!t.listening) [text, kind] = ['nothing listens', 'busy'];
    this.set('state', text);
    this.set('hand', byHand(t.override));
    this.parts.state.dataset.kind = kind;
    this.bar.parentElement.dataset.kind = t.in_flight >= t.limit ? 'busy' : 'calm';
  }

  tables(t) {
    if (!this.root.open) return;
    const past = this.past;
    const rows = reasons.map(([r, text]) => [text, rate(past.now(`rejected_${r}`)), count(t.rejected_total[r])]);
    if (t.mode === 'observe') rows.push(['would be refused', rate(past.now('would_reject')), count(t.would_reject_total)]);
    fill(this.parts.reasons, rows);

    fill(this.parts.changes, past.changes.slice(-6).reverse().map((c) => [
      ago(past.second - Date.parse(c.time) / 1000), `${count(c.from)} → ${count(c.to)}`, c.words,
    ]), 'none yet');

    const q = t.accept_queue, trip = t.tcp_rtt_seconds;
    fill(this.parts.more, [
      ['unit', t.unit],
      ['algorithm', t.algorithm],
      ['gradient', t.gradient ? t.gradient.toFixed(2) : unknown],
      ['p50 and p99', t.window.samples ? `${seconds(t.window.p50_seconds)} and ${seconds(t.window.p99_seconds)}` : unknown],
      ['TCP round trip', `${seconds(known(trip.p50))}, handshake ${seconds(known(trip.handshake_p50))}`],
      ['accept queue', `${count(q.length)} of ${count(q.max)}, ${count(q.overflows_total)} lost`],
      t.unit === 'request' && ['connections', count(t.connections)],
      t.pace.rate_per_second > 0 && ['pace', rate(t.pace.rate_per_second)],
      t.held_total > 0 && ['had to wait', `${count(t.held_total)} in all`],
      t.bypassed_total > 0 && ['let in unheld', `${count(t.bypassed_total)} in all`],
      ...(t.classes ?? []).map((c) => [
        c.name === 'others' ? 'of no class' : `class ${c.name}`, `${count(c.in_flight)} of ${count(c.limit)}, ${count(c.rejected_total)} refused`,
      ]),
      t.exempted_total > 0 && ['exempt', `${count(t.exempted_total)} in all`],
    ].filter(Boolean));
  }

  draw() {
    if (!this.root.open || !this.past.second) return;
    for (const c of this.charts) {
      c.draw(this.past.series, this.read, (read) => clock(new Date((this.past.second - read) * 1000)));
    }
  }
}

// byHand says what was set in place of what the rule says.
function byHand(o) {
  const set = [];
  if (o?.limit != null) {
    const left = o.expires_in_seconds;
    set.push(`limit ${count(o.limit)}${left == null ? '' : ` for ${ago(Math.max(1, left))}`}`);
  }
  if (o?.mode) set.push(`mode ${o.mode}`);
  return set.length ? `by hand: ${set.join(', ')}` : '';
}

// note lists what is not well, though the targets are protected.
function note(status) {
  const notes = [];
  if (status.reload && !status.reload.successful) notes.push(`The last reload failed, what was in force before stays: ${status.reload.error}`);
  for (const t of status.troubles ?? []) notes.push(`${t.hook}: ${t.trouble}`);
  for (const s of status.shadowed ?? []) {
    notes.push(`A program of others may decide before headgate's: ${s.name || 'without a name'}${s.id ? `, id ${s.id}` : ''}, at ${s.hook}, ${s.at}`);
  }
  const text = notes.join('\n');
  if ($('notes').dataset.text === text) return;
  $('notes').dataset.text = text;
  $('notes').hidden = notes.length === 0;
  $('notes').replaceChildren(...notes.map((n) => Object.assign(document.createElement('li'), { textContent: n })));
}

// fill writes rows into the body of a table; the first cell is the row's head.
function fill(body, rows, none) {
  const text = JSON.stringify(rows);
  if (body.dataset.text === text) return;
  body.dataset.text = text;
  body.replaceChildren(...rows.map((row) => {
    const tr = document.createElement('tr');
    row.forEach((text, i) => {
      const cell = document.createElement(i ? 'td' : 'th');
      if (!i) cell.scope = 'row';
      cell.textContent = text;
      tr.append(cell);
    });
    return tr;
  }));
  if (rows.length === 0 && none) {
    const tr = body.insertRow();
    const cell = tr.insertCell();
    cell.colSpan = 3;
    cell.textContent = none;
  }
}

// get asks the agent for something. The page's own address may hold a password,
// which fetch does not take; the browser sends it all the same.
async function get(path) {
  return fetch(location.origin + location.pathname + path, { cache: 'no-store', signal: AbortSignal.timeout(patience) });
}

async function getJSON(path) {
  const answer = await get(path);
  if (!answer.ok) throw new Error(`the agent answers ${answer.status} ${answer.statusText}`);
  return answer.json();
}

// update makes the page what the agent is now.
async function update() {
  const since = Math.min(points, Math.ceil((performance.now() - asked) / 1000) + 2);
  const [status, news, ready] = await Promise.all([
    getJSON('api/v1/status'),
    getJSON(`api/v1/history?points=${asked ? since : 2}`),
    get('readyz').then((a) => (a.ok ? '' : a.text())),
  ]);
  asked = performance.now();
  heard = new Date();
  arrange(status.targets);
  take(news);

  const young = [...cards].filter(([, c]) => c.root.open && !c.past.whole).map(([n]) => n);
  for (let i = 0; i < young.length; i += batch) {
    const query = young.slice(i, i + batch).map((n) => `target=${encodeURIComponent(n)}`).join('&');
    take(await getJSON(`api/v1/history?${query}`));
    for (const n of young.slice(i, i + batch)) cards.get(n).past.whole = true;
  }

  for (const t of status.targets) {
    const card = cards.get(name(t));
    card.show(t);
    card.draw();
  }
  $('agent').textContent = `version ${status.version}, mode ${status.mode}, ${count(status.targets.length)} ` +
    (status.targets.length === 1 ? 'target' : 'targets');
  const why = ready.trim().split('\n').slice(1).map((line) => line.replace(/^- /, ''));
  alarm(ready ? `Not protecting: ${why.join('; ')}` : '');
  note(status);
  document.documentElement.dataset.second = news.second;
}

function take(history) {
  for (const t of history.targets) cards.get(name(t))?.past.merge(history, t);
}

// arrange has a card for each target, in the order of the status.
function arrange(targets) {
  const first = cards.size === 0;
  const names = new Set(targets.map(name));
  for (const [n, card] of cards) {
    if (!names.has(n)) {
      card.root.remove();
      cards.delete(n);
    }
  }
  for (const [i, t] of targets.entries()) {
    let card = cards.get(name(t));
    if (!card || card.mode !== t.mode) {
      const old = card;
      card = new Card(t);
      if (old) card.past = old.past;
      card.root.open = old ? old.root.open : first && targets.length <= openAtFirst;
      old?.root.remove();
      cards.set(name(t), card);
    }
    if ($('targets').children[i] !== card.root) $('targets').insertBefore(card.root, $('targets').children[i] ?? null);
  }
  $('empty').hidden = targets.length > 0;
  $('tools').hidden = targets.length < filterFrom;
  filter();
}

function filter() {
  const words = $('tools').hidden ? [] : $('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const card of cards.values()) {
    const text = card.root.querySelector('h2').textContent.toLowerCase();
    card.root.hidden = !words.every((w) => text.includes(w));
    shown += !card.root.hidden;
  }
  $('matches').textContent = words.length ? `${shown} of ${cards.size}` : '';
}

// alarm says what is wrong, or nothing.
function alarm(text) {
  if ($('alarm').textContent !== text) $('alarm').textContent = text;
  $('alarm').hidden = !text;
}

// gone says that the agent does not answer. What it said last stays, and looks
// old.
function gone(error) {
  document.body.dataset.stale = 'true';
  document.title = 'headgate: no data';
  alarm(heard
    ? `No data since ${clock(heard)}, for ${ago(Math.max(1, (Date.now() - heard) / 1000))}. ${cause(error)}`
    : `No data. ${cause(error)}`);
}

function cause(error) {
  if (error.name === 'TimeoutError') return 'The agent does not answer. Its gates open when its lease ends.';
  if (error instanceof TypeError) return 'The agent is not there: it was stopped, or the network to it is down.';
  return `${error.message[0].toUpperCase()}${error.message.slice(1)}.`;
}

let timer;
async function tick() {
  clearTimeout(timer);
  timer = null;
  if (!paused && !document.hidden) {
    try {
      await update();
      delete document.body.dataset.stale;
      document.title = 'headgate';
    } catch (error) {
      gone(error);
    }
    $('clock').textContent = heard ? clock(heard) : '';
  }
  timer = setTimeout(tick, interval);
}

// wake does not wait for the second to be over.
function wake() {
  if (timer) tick();
}

$('pause').addEventListener('click', () => {
  paused = !paused;
  $('pause').setAttribute('aria-pressed', paused);
  $('pause').textContent = paused ? 'Go on' : 'Pause';
  wake();
});
const openAll = (open) => () => {
  for (const card of cards.values()) if (!card.root.hidden) card.root.open = open;
};
$('open').addEventListener('click', openAll(true));
$('close').addEventListener('click', openAll(false));
$('filter').addEventListener('input', filter);
$('tools').addEventListener('submit', (e) => e.preventDefault());
document.addEventListener('visibilitychange', () => !document.hidden && wake());
tick();
