package pace

import (
	"container/list"
	"net/netip"
)

// line is the order of those who wait for nothing but a slot: a turn for each
// class, in that a turn for each source, and in that who came first, or last.
type line struct {
	newestFirst bool
	classes     map[int]*classLine
	turns       list.List // of *classLine; the front one is next
}

type classLine struct {
	class   int
	isFull  bool // there was no slot for it
	sources map[netip.Prefix]*sourceLine
	turns   list.List // of *sourceLine; the front one is next
	turn    *list.Element
}

type sourceLine struct {
	source  netip.Prefix
	waiters list.List
	turn    *list.Element
}

func newLine() *line { return &line{classes: make(map[int]*classLine)} }

func (l *line) empty() bool { return len(l.classes) == 0 }

func (l *line) push(w *waiter) {
	c := l.classes[w.group.Class]
	if c == nil {
		c = &classLine{class: w.group.Class, sources: make(map[netip.Prefix]*sourceLine)}
		c.turn = l.turns.PushBack(c)
		l.classes[c.class] = c
	}
	s := c.sources[w.group.Source]
	if s == nil {
		s = &sourceLine{source: w.group.Source}
		s.turn = c.turns.PushBack(s)
		c.sources[s.source] = s
	}
	w.place = s.waiters.PushBack(w)
}

// head returns who is next; nil when nobody waits whose class may have a slot.
func (l *line) head() *waiter {
	for e := l.turns.Front(); e != nil; e = e.Next() {
		c := e.Value.(*classLine)
		if c.isFull {
			continue
		}
		waiters := &c.turns.Front().Value.(*sourceLine).waiters
		if l.newestFirst {
			return waiters.Back().Value.(*waiter)
		}
		return waiters.Front().Value.(*waiter)
	}
	return nil
}

func (l *line) remove(w *waiter) {
	if w.place == nil {
		return
	}
	c := l.classes[w.group.Class]
	s := c.sources[w.group.Source]
	s.waiters.Remove(w.place)
	w.place = nil
	if s.waiters.Len() == 0 {
		c.turns.Remove(s.turn)
		delete(c.sources, s.source)
	}
	if c.turns.Len() == 0 {
		l.turns.Remove(c.turn)
		delete(l.classes, c.class)
	}
}

// hadTurn says that the class and the source of w had their turn.
func (l *line) hadTurn(w *waiter) {
	c := l.classes[w.group.Class]
	if c == nil {
		return
	}
	l.turns.MoveToBack(c.turn)
	if s := c.sources[w.group.Source]; s != nil {
		c.turns.MoveToBack(s.turn)
	}
}

// full says that there is no slot for the class of w.
func (l *line) full(w *waiter) {
	if c := l.classes[w.group.Class]; c != nil {
		c.isFull = true
	}
}

// allFull says that there is no slot for anybody.
func (l *line) allFull() {
	for _, c := range l.classes {
		c.isFull = true
	}
}

// askAgain says that there may be slots for all.
func (l *line) askAgain() {
	for _, c := range l.classes {
		c.isFull = false
	}
}
