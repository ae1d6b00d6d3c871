package load

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// Turn is a step of a dialogue: something is sent, and an answer comes.
type Turn struct {
	Send []byte

	// Begin and End are how an answer begins, in up to 12 bytes, and ends, in 1
	// to 8 bytes that are nowhere else in it. An answer that begins otherwise is
	// a failure.
	Begin, End string
}

// Begins says whether an answer of which this has come can be the one.
func (t Turn) Begins(answer []byte) bool {
	n := min(len(answer), len(t.Begin))
	return string(answer[:n]) == t.Begin[:n]
}

// Ends says whether an answer that ends so is complete.
func (t Turn) Ends(answer []byte) bool { return bytes.HasSuffix(answer, []byte(t.End)) }

// hear takes what has come of the answer to the turn that the request is at, and
// goes on to the next one when that is complete.
func (g *generator) hear(r *request, part []byte) {
	turn := g.cfg.Turns[r.turn]
	r.headLen += copy(r.head[r.headLen:], part)
	if !turn.Begins(r.head[:r.headLen]) {
		g.end(r, Failed)
		return
	}
	r.tail = append(r.tail, part[max(0, len(part)-len(turn.End)):]...)
	r.tail = r.tail[max(0, len(r.tail)-len(turn.End)):]
	if !turn.Ends(r.tail) || r.headLen < len(turn.Begin) {
		return
	}
	if r.turn++; r.turn == len(g.cfg.Turns) {
		g.end(r, Answered)
		return
	}
	r.headLen, r.tail = 0, r.tail[:0]
	if _, err := unix.Write(r.fd, g.cfg.Turns[r.turn].Send); err != nil {
		g.end(r, connectOutcome(err))
	}
}

// first is what is sent on a connection at once.
func (c *Config) first() []byte {
	if len(c.Turns) > 0 {
		return c.Turns[0].Send
	}
	return c.Request
}
