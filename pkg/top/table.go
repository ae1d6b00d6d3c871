package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"headgate/pkg/status"
)

// columns are what targets are sorted by: the largest first, but names.
var columns = []struct {
	name    string
	compare func(m *Model, a, b *status.Target) int
}{
	{"rule", func(_ *Model, a, b *status.Target) int { return cmp.Compare(a.Rule, b.Rule) }},
	{"in flight", func(_ *Model, a, b *status.Target) int { return cmp.Compare(b.InFlight, a.InFlight) }},
	{"use", func(_ *Model, a, b *status.Target) int { return cmp.Compare(use(b), use(a)) }},
	{"limit", func(_ *Model, a, b *status.Target) int { return cmp.Compare(b.Limit, a.Limit) }},
	{"time", func(_ *Model, a, b *status.Target) int {
		return cmp.Compare(b.Window.MeanSeconds, a.Window.MeanSeconds)
	}},
	{"done", func(_ *Model, a, b *status.Target) int {
		return cmp.Compare(b.ThroughputPerSecond, a.ThroughputPerSecond)
	}},
	{"refused", func(m *Model, a, b *status.Target) int {
		return cmp.Compare(m.past[keyOf(b)].refusedPerSecond, m.past[keyOf(a)].refusedPerSecond)
	}},
}

// use is the share of the limit that is in flight.
func use(t *status.Target) float64 { return float64(t.InFlight) / float64(max(t.Limit, 1)) }

// shown returns the targets that pass the filter, sorted.
func (m *Model) shown() []*status.Target {
	if m.last == nil {
		return nil
	}
	var all []*status.Target
	for i := range m.last.Targets {
		t := &m.last.Targets[i]
		text := strings.ToLower(fmt.Sprint(t.Rule, " ", t.Port, " ", t.Scope, " ", t.Unit, " ", t.Mode, " ", t.Algorithm))
		if m.past[keyOf(t)] != nil && strings.Contains(text, strings.ToLower(m.filter)) {
			all = append(all, t)
		}
	}
	slices.SortStableFunc(all, func(a, b *status.Target) int {
		c := columns[m.order].compare(m, a, b)
		if m.reversed {
			c = -c
		}
		return cmp.Or(c, cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Scope, b.Scope))
	})
	return all
}

func (m *Model) find(k key) *status.Target {
	if m.last == nil {
		return nil
	}
	for i := range m.last.Targets {
		if t := &m.last.Targets[i]; keyOf(t) == k {
			return t
		}
	}
	return nil
}

// widths are those of the columns whose width depends on the screen's.
type widths struct{ rule, scope, spark int }

// lately is how many moments a line of the table shows: a minute.
const lately = 60

// fixed is what all other columns take, with the blanks between: the mark, port,
// limit, in flight, time, done, refused.
const fixed = 1 + 6 + 2*3 + 6 + 6 + 7 + 8 + 8

func (m *Model) widths() widths {
	w := widths{rule: 8}
	for _, t := range m.shown() {
		w.rule = max(w.rule, len([]rune(t.Rule)))
		if t.Scope != "host" {
			w.scope = max(w.scope, len([]rune(t.Scope))+1, 6)
		}
	}
	w.rule = min(w.rule, max(10, m.width/6))
	w.scope = min(w.scope, max(0, m.width/8))
	if m.width < 100 {
		w.scope = 0
	}
	w.spark = min(max((m.width-fixed-w.rule-w.scope)/3, 3), 40)
	return w
}

func (m *Model) header(w widths) string {
	scope := ""
	if w.scope > 0 {
		scope = " " + pad("SCOPE", w.scope-1)
	}
	return fmt.Sprintf(" %s%s %5s %s %s %s %7s %7s", pad("RULE", w.rule), scope, "PORT",
		pad(" LIMIT", 7+w.spark), pad("FLIGHT", 7+w.spark), pad("   TIME", 8+w.spark), "DONE", "REFUSED")
}

// row is the line of a target.
func (m *Model) row(t *status.Target, w widths, st styles) string {
	h := m.past[keyOf(t)]
	scope := ""
	if w.scope > 0 {
		scope = " " + pad(shorten(t.Scope, w.scope-1), w.scope-1)
	}
	limits, flights := h.condensed(h.limit, w.spark, lately), h.condensed(h.inFlight, w.spark, lately)
	times := h.condensed(h.service, w.spark, lately)
	most := scale(w.spark, limits, flights)
	limit, flight := spark(limits, w.spark, most), spark(flights, w.spark, most)
	service := spark(times, w.spark, largest(w.spark, times))
	refused := status.Count(h.refusedPerSecond) + "/s"
	if h.refusedPerSecond > 0 && h.refusedPerSecond < 0.05 {
		refused = "0/s"
	}
	if t.Mode == "observe" {
		refused = "(" + status.Count(h.refusedPerSecond) + ")"
	}
	refusedStyle := st.plain
	if h.refusedPerSecond >= 0.05 {
		refusedStyle = st.bad
		if t.Mode == "observe" {
			refusedStyle = st.warn
		}
	}
	flightStyle := st.flight
	if t.InFlight >= t.Limit {
		flightStyle = st.warn
	}
	name := pad(shorten(status.Printable(t.Rule), w.rule), w.rule)
	return fmt.Sprintf("%s%s %5s %6s %s %6s %s %7s %s %7s %s",
		name, scope, strconv.Itoa(int(t.Port)),
		status.Count(float64(t.Limit)), st.limit.Render(limit),
		status.Count(float64(t.InFlight)), flightStyle.Render(flight),
		status.Seconds(t.Window.MeanSeconds), st.service.Render(service),
		status.Count(t.ThroughputPerSecond)+"/s", refusedStyle.Render(fmt.Sprintf("%7s", refused)))
}
