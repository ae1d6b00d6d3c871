// How numbers are written: three significant digits, and always a unit.

const plain = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 });
export const unknown = '–';

// count writes a whole number, 12,345.
export function count(n) {
  return n == null ? unknown : plain.format(n);
}

// rate writes a number per second: 0.5/s, 12,300/s.
export function rate(n) {
  return n == null ? unknown : (n < 100 ? short : plain).format(n) + '/s';
}

// compact is for axes, where there is little room: 60K, 2M.
const compacted = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });
export const compact = (n) => compacted.format(n);
export const compactRate = (n) => compact(n) + '/s';

// seconds writes a time: 640 µs, 20.3 ms, 1.5 s.
export function seconds(s) {
  if (s == null) return unknown;
  if (s === 0) return '0 s';
  if (s < 0.0009995) return short.format(s * 1e6) + ' µs';
  if (s < 0.9995) return short.format(s * 1e3) + ' ms';
  return short.format(s) + ' s';
}

// known turns the API's 0 for what was not measured yet into nothing.
export function known(n) {
  return n === 0 ? null : n;
}

// ago writes how long ago something was: now, 12 s, 3 min, 2 h.
export function ago(s) {
  if (s < 0.5) return 'now';
  if (s < 119.5) return Math.round(s) + ' s';
  if (s < 7170) return Math.round(s / 60) + ' min';
  return Math.round(s / 3600) + ' h';
}

// clock writes a time of day.
export function clock(date) {
  return date.toLocaleTimeString('en-GB');
}
