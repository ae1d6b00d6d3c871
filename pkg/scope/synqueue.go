package scope

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// SYNQueue is what the kernel of a namespace does with handshakes that are not
// complete yet: see tcp(7).
type SYNQueue struct {
	Cookies bool // tcp_syncookies: it makes do without a record where there is no room
	Most    int  // tcp_max_syn_backlog: records of a listener
	Retries int  // tcp_synack_retries: how often it asks again
}

// ReadSYNQueue reads it in the namespace of the calling thread.
func ReadSYNQueue() (q SYNQueue, err error) {
	var cookies int
	for name, to := range map[string]*int{
		"tcp_syncookies":      &cookies,
		"tcp_max_syn_backlog": &q.Most,
		"tcp_synack_retries":  &q.Retries,
	} {
		text, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
		if err != nil {
			return SYNQueue{}, fmt.Errorf("queue of handshakes: %w", err)
		}
		if *to, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return SYNQueue{}, fmt.Errorf("queue of handshakes: %s: %w", name, err)
		}
	}
	q.Cookies = cookies != 0
	return q, nil
}

// Strangers is how many a second may be let through to a listener of a backlog
// (see listen(2)) who may never answer, so that the queue is half full of them
// at the most and the rest is there for others; 0: as many as like, for the
// kernel makes SYN cookies.
//
// Without these it takes no more than 3/4 of Most from addresses that it knows
// nothing of, and no more than the backlog from anybody. One that does not answer
// is kept for the first second and, asked again each time, twice as long as
// before; so for 2^(Retries+1) - 1 seconds in all.
func (q SYNQueue) Strangers(backlog int) int {
	if q.Cookies {
		return 0
	}
	room := min(q.Most*3/4, backlog)
	kept := time.Second<<(min(max(q.Retries, 0), 16)+1) - time.Second
	return max(room/2/int(kept/time.Second), 1)
}
